"""The client for OCI registries: transport, logins, download, push, tags, referrers."""
