"""C90: the offset of local time from UTC."""

import time

from envkit.smoke import observation


def run(ctx):
    """Report the offset in seconds."""
    planted = observation.control("planted_offset_is_seen", time.gmtime(3600).tm_hour == 1, "one hour after 1970")
    return [observation.ran("C90", "image", {"offset_s": time.localtime(0).tm_gmtoff}, controls=[planted])]
