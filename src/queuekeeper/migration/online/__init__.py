"""Migration while devices are connected: client by client, fenced for milliseconds, reversible until committed."""
