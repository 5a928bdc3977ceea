"""A headless Chromium driven over its DevTools protocol by a pipe. Standard library only."""

import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """Path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. Collects what the console and the network had to complain about in `problems`."""

    def __init__(self, program, width=1280, height=900):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4, each ended by a zero byte.
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-extensions",
            f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank",
        ]
        shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *command], pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._answers = queue.Queue()
        self._last_id = 0
        self._session = None
        self.problems = []
        threading.Thread(target=self._read, daemon=True).start()
        self.new_tab()
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        self._profile.cleanup()

    def _read(self):
        rest = b""
        while data := os.read(self._in, 1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers.put(message)
                else:
                    self._take_event(message["method"], message["params"])

    def _take_event(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def _call(self, method, **params):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answers.get(timeout=60)
            if answer["id"] == self._last_id:
                break
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def new_tab(self):
        """Opens a tab, with the storage of the others, and goes on in it. Returns what go_to_tab takes."""
        self._session = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(domain + ".enable")
        return self._session

    def go_to_tab(self, tab):
        self._session = tab
        self._call("Page.bringToFront")

    def tab(self):
        return self._session

    def download_to(self, folder):
        self._call("Page.setDownloadBehavior", behavior="allow", downloadPath=folder)

    def choose_files(self, element_id, paths):
        """As if somebody had chosen files in an <input type="file">."""
        field = self._call("Runtime.evaluate", expression=f"document.getElementById('{element_id}')")["result"]["objectId"]
        self._call("DOM.setFileInputFiles", files=paths, objectId=field)

    def resize(self, width, height, mobile=False):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def prefer(self, scheme):
        """"dark" or "light"."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self._call("Page.navigate", url=url)
        here = "===" if url == "about:blank" else "!=="
        self.wait(f"document.readyState === 'complete' && location.href {here} 'about:blank'")

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script, seconds=30):
        """Until the expression is true."""
        waiting = (
            "new Promise((done, fail) => { const until = Date.now() + %d; const look = () => (%s) ? done(true) :"
            " Date.now() > until ? done(false) : setTimeout(look, 30); look(); })" % (seconds * 1000, script)
        )
        if not self.run(waiting):
            raise AssertionError(f"not within {seconds} s: {script}")

    def press(self, key, code=None, text=""):
        params = {"key": key, "code": code or key, "text": text}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowRight": 39, "ArrowLeft": 37}
        params["windowsVirtualKeyCode"] = codes.get(key, 0)
        self._call("Input.dispatchKeyEvent", type="keyDown", **params)
        self._call("Input.dispatchKeyEvent", type="keyUp", **params)

    def type(self, text):
        self._call("Input.insertText", text=text)

    def screenshot(self, path):
        data = self._call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))
