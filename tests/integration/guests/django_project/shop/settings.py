"""Settings of the project: a database for everything, and Celery's with what would be the end of an agent."""

from __future__ import annotations

import os

SECRET_KEY = "of a test"  # noqa: S105 - nobody else's
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django_celery_beat",
    "django_celery_results",
    "orders",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        "OPTIONS": {"timeout": 20},
    }
}

CELERY_BROKER_URL = os.environ["SHOP_BROKER"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_RESULT_BACKEND = "django-db"
CELERY_RESULT_EXTENDED = True
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_SCHEDULE = {"nightly": {"task": "orders.tasks.count", "schedule": 86400.0}}
CELERY_TASK_TIME_LIMIT = 2
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_TRACK_STARTED = False
CELERY_TASK_DEFAULT_RATE_LIMIT = "600/m"
