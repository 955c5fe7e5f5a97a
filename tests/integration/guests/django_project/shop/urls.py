"""The pages of the project."""

from __future__ import annotations

from django.urls import path
from orders import views

urlpatterns = [path("orders/<str:agent_id>/", views.order)]
