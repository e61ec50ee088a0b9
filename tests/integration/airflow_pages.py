"""Signing in to a real Airflow with a browser, as a person does."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page

from queuekeeper.embedded import AirflowServer
from tests.patience import PATIENCE_S


def signed_in(browser: Browser, airflow: AirflowServer, name: str) -> Page:
    """Return a page of a user who has signed in."""
    user = airflow.user(name)
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(PATIENCE_S * 1_000)
    page.goto(airflow.url)
    page.get_by_label("Username").fill(user.name)
    page.locator("input[type=password]").fill(user.password)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"{airflow.url}/(?!auth).*"))
    return page
