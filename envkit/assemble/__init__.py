"""The embedded engine: image layers assembled in this process, with no daemon and no root."""
