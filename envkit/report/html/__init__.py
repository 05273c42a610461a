"""The report as one HTML file: no network, nothing but what stands in it."""
