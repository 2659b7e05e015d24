"""Task queues of Python that run on a broker: taskiq, and Celery by its messaging library kombu.

Each module needs its extra: `pip install '.[taskiq]'` or `'.[celery]'`.
"""
