"""What people ask of a live cluster, answered from its journal: jobs, hosts, histories, forecasts, health."""
