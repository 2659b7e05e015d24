"""Tasks with Celery on a broker."""
