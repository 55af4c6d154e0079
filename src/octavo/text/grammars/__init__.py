"""Forms of answers as grammars over tokens: one file per library that makes them."""
