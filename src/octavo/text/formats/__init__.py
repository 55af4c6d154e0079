"""How families of models write calls of tools and reasoning: a row of a table each."""
