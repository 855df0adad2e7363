"""A provider from npm, and a browser that signs in there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from stage.processes.ports import free_port

SCRIPT = Path(__file__).with_name("oidc_provider.mjs")


@pytest.fixture(scope="module")
def provider():
    """(its issuer, the callback that it knows)."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node is not installed: no provider is run")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tributary-tests"
    if not (folder / "node_modules" / "oidc-provider").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-save", "--prefix", f"{folder}", "oidc-provider", "axe-core"]
        if subprocess.run(command, timeout=180, capture_output=True).returncode:
            pytest.skip("oidc-provider could not be installed")
    port = free_port()
    redirect = f"https://127.0.0.1:{port}/sign-in/back"
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [node, f"{SCRIPT}", f"{folder}", redirect], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    said = process.stdout.readline().strip()
    while said and not said.isdigit():
        said = process.stdout.readline().strip()
    assert said, "the provider did not start"
    yield f"http://127.0.0.1:{said}", redirect
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def signed_in(place: str, who: str) -> dict[str, str]:
    """What the provider sends a browser back with, in which `who` signed in and agreed; nothing of a device's code."""
    with httpx.Client(timeout=30) as browser:
        answer = browser.get(place)
        for _ in range(16):
            if answer.is_redirect:
                where = str(answer.url.join(answer.headers["location"]))
                if "/sign-in/back" in where:
                    return dict(httpx.URL(where).params)
                answer = browser.get(where)
                continue
            if "Sign-in Success" in answer.text:
                return {}
            action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)[1]
            form = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', answer.text))
            form |= {"login": who, "password": "x"} if form.get("prompt") == "login" else {}
            answer = browser.post(answer.url.join(action), data=form)
    raise AssertionError("the provider never sent the browser back")
