"""Is a store what it says it is?"""
