"""The console: pages for people, served by a process of its own that knows the broker only by its calls.

    browser  ->  protection.Gate        host name, base path, headers of every answer
                 app.Endpoint           whose session it is, CSRF, `--read-only`, errors as pages
                 pages/*                one module for each part: calls of `aerobee_client`, and a template
                 templates/*, drawing/* the page: Jinja2, and SVG made here

Nothing here imports the broker. Each call is signed with the account of the visitor, so that the broker decides what it
may see and change; the console hides only what would be refused anyway.
"""
