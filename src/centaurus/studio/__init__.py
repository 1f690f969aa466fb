"""The studio: the library in a browser, served on this machine or written as a static site. No torch."""

from centaurus.studio.server import serve, write_site

__all__ = ["serve", "write_site"]
