"""The pages, one module for each part of a broker: calls in the name of the visitor, and a template."""
