"""Several hosts on one machine: network namespaces joined by shaped links."""
