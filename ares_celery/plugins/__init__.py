"""Extension points: what a plug-in is, the bus that runs plug-ins, and the plug-ins that are shipped."""
