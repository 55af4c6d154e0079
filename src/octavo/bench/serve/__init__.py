"""Load on a server, from outside: any that speaks OpenAI's API."""
