"""An engine in a process of its own: started, spoken to, and started again when it ends."""
