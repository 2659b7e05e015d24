"""Pictures as SVG, made here: charts of figures over time, and the life of a message.

They carry no styles of their own: classes are in `static/console.css`, as the policy of the pages allows no others.
"""
