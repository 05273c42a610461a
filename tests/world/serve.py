"""A small threaded server for static files on loopback: `serve.py FOLDER PORT`."""

import functools
import http.server
import sys


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves static files over HTTP/1.1, so that clients can reuse connections."""

    protocol_version = "HTTP/1.1"


def main(folder: str, port: str) -> None:
    """Serve until the process is stopped."""
    answer = functools.partial(Files, directory=folder)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), answer).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
