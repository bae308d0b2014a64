"""The explorer: a page in the browser that shows what a decoder does to a picture, and a small inference service.

A picture is analyzed once (`segmentation.py`, `unrolled.py`); what the page asks afterwards is answered from what was
kept (`store.py`). `jobs.py` bounds what runs at once, `guard.py` and `uploads.py` what comes in, `app.py` has the
routes, `server.py` runs it. `page/` holds the page: plain HTML, CSS and JavaScript without a build step.
"""
