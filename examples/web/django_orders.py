"""Django: one blocking client for each process. `python -m examples.web.django_orders runserver`"""

from __future__ import annotations

import functools
import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from aerobee_client import Message, blocking

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1", "localhost"])


@functools.cache
def producer() -> blocking.BlockingProducer:
    """Connect at the first use: a server may fork its processes before, but not after."""
    return blocking.connect(os.environ.get("AEROBEE_ENDPOINT", "127.0.0.1:8081")).producer()


def order(request: HttpRequest, number: str) -> JsonResponse:
    """Store an order; answered once the broker has it."""
    result = producer().send(Message(topic="orders", body=number.encode(), keys=(number,)))
    return JsonResponse({"message_id": result.message_id})


urlpatterns = [path("orders/<str:number>", order)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
