"""The report, as text and in a real browser (headless Chromium, where there is one)."""

import json
import re
import shutil

import numpy as np
import pytest

from steadyrl import diagnose, diagnose_lengths, phase_mixing_time
from steadyrl.common.detours import Perturbation
from steadyrl.diagnosis.report import render, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
browser_only = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver on this machine")

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> & \"quotes\" 'too'"


@pytest.fixture(scope="module")
def cartpole():
    return diagnose("CartPole-v1", episodes=300, backend="serial")


@pytest.fixture(scope="module")
def page(cartpole, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(cartpole, path, command="steadyrl diagnose CartPole-v1")
    return path


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_one_file_holds_everything(page, cartpole):
    text = page.read_text()
    assert len(text) < 400_000
    assert not re.search(r'(?:src|href)\s*=\s*["\'](?!data:)', text)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    for words in ("CartPole-v1", "steadyrl diagnose CartPole-v1", "seed", "gymnasium", cartpole.recommendation.code):
        assert words in text
    data = data_of(text)
    assert {"nothing", "stagger", "recursive-epsilon"} <= {way["name"] for way in data["strategies"]}
    raw = next(way for way in data["strategies"] if way["name"] == "nothing")
    assert len(raw["low"]) == len(raw["high"]) == len(raw["x"])
    assert sum(data["lengths"]["f"]) == pytest.approx(1, abs=1e-4)
    assert len(data["marginals"]["dimensions"]) == 4


def test_every_supplied_string_is_escaped():
    found = diagnose_lengths([9, 10, 12] * 50, name=EVIL)
    text = render(found, command=EVIL)
    assert EVIL not in text
    assert "<img" not in text
    assert text.count("</script>") == 2  # the data's and the script's own


def test_the_page_says_where_a_band_of_few_episodes_is_too_narrow():
    """It said that the band holds the truth with 90%, which it does not at early times of 50 episodes."""
    lengths = np.random.default_rng(0).integers(20, 60, 2000)
    assert "too narrow, since 50 episodes are few" in render(diagnose_lengths(lengths[:50]))
    assert "too narrow" not in render(diagnose_lengths(lengths))


def test_lengths_beyond_the_pages_ages_are_counted_in_units():
    found = diagnose_lengths(np.random.default_rng(0).integers(900, 1700, 2000))
    data = data_of(render(found))
    assert data["lengths"]["unit"] == 5
    assert len(data["lengths"]["f"]) <= 401


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "no-first-run"):
        options.add_argument(f"--{flag}")
    options.add_argument("--disable-dev-shm-usage")
    options.add_argument("--window-size=1000,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def requests_of(driver):
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


@browser_only
def test_the_page_draws_without_errors_and_asks_nobody(browser, page):
    browser.get(page.as_uri())
    assert browser.get_log("browser") == []
    asked = [url for url in requests_of(browser) if not url.startswith("data:")]
    assert asked == [page.as_uri()]
    for name in ("lengths", "distance", "marginal-0", "marginal-3"):
        assert browser.find_element("css selector", f"#{name} svg").size["height"] > 100
    assert len(browser.find_elements("css selector", "#distance polyline")) == 5  # what practitioners need
    assert len(browser.find_elements("css selector", "#distance polygon.bound")) == 1  # what nothing can reach
    assert len(browser.find_elements("css selector", "#paper-distance polyline")) == 3  # raw, the paper's, the slider's


@browser_only
def test_the_slider_moves_the_mixing_time_by_keyboard_and_agrees_with_the_library(browser, page, cartpole):
    from selenium.webdriver.common.keys import Keys

    browser.get(page.as_uri())
    time, knob = browser.find_element("id", "tstar"), browser.find_element("id", "epsilon")
    assert time.text.startswith(f"{cartpole.perturbed_mixing_time:.0f} steps")
    before, curve = (
        time.text,
        browser.find_element("css selector", "#paper-distance polyline:last-of-type").get_attribute("points"),
    )
    for _ in range(60):
        knob.send_keys(Keys.ARROW_LEFT)
    assert time.text != before
    assert (
        browser.find_element("css selector", "#paper-distance polyline:last-of-type").get_attribute("points") != curve
    )
    epsilon = browser.execute_script("return state.epsilon")
    assert epsilon < cartpole.epsilon
    assert time.text.startswith(f"{phase_mixing_time(cartpole.lengths, 0.01, Perturbation(epsilon)):.0f} steps")
    assert browser.get_log("browser") == []


@browser_only
def test_curves_can_be_switched_by_keyboard(browser, page):
    browser.get(page.as_uri())
    boxes = browser.find_elements("css selector", "#legend input")
    count = len(browser.find_elements("css selector", "#distance polyline"))
    browser.execute_script("arguments[0].focus()", boxes[0])
    boxes[0].send_keys(" ")
    assert len(browser.find_elements("css selector", "#distance polyline")) != count


@browser_only
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_light_and_dark(browser, page, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.get(page.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        ink = browser.execute_script("return getComputedStyle(document.body).color")
        bright = [sum(map(int, re.findall(r"\d+", value)[:3])) for value in (paper, ink)]
        assert (bright[0] > bright[1]) == (scheme == "light")
        assert abs(bright[0] - bright[1]) > 450
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@browser_only
def test_a_hostile_name_is_shown_as_text(browser, tmp_path):
    path = tmp_path / "evil.html"
    write_report(diagnose_lengths([9, 10, 12] * 50, name=EVIL), path, command=EVIL)
    browser.get(path.as_uri())
    assert EVIL in browser.find_element("tag name", "h1").text
    assert "owned" not in browser.execute_script("return document.title.slice(0, 5)")
    assert browser.find_elements("tag name", "img") == []
    assert browser.get_log("browser") == []


@browser_only
def test_what_is_copied_has_all_its_spaces(browser, cartpole, tmp_path):
    """Two spaces in a row were shown as one, so that a command named another file."""
    path = tmp_path / "report.html"
    path.write_text(render(cartpole, command="steadyrl diagnose --from 'a  b.csv'"))
    browser.get(path.as_uri())
    cells = [cell.get_property("innerText") for cell in browser.find_elements("css selector", "td")]
    assert "steadyrl diagnose --from 'a  b.csv'" in cells
    browser.execute_script("document.querySelector('#code code').textContent = 'a  b'")
    assert browser.find_element("css selector", "#code code").get_property("innerText") == "a  b"
