"""How questions begin. The model itself writes the rest of a question, and its answer."""

from __future__ import annotations

_CODE = """Write a Python function that
Write a Python function to
Write a function that
Write a JavaScript function that
Write a SQL query to
Write a SQL query that
Write a bash script that
Write a shell command to
Write a Python class for
Write a class for
Implement a class in Python for
Implement
Fix the bug in this code:
Refactor the following code to
Explain what this code does:
Write unit tests for
Convert the following JSON to
Write a regular expression that
Write a C function that
Create a C program that
Write a Rust function
Write a Go function that
Write a Java method that
Write HTML and CSS for
Write a React component
Write a Dockerfile
Write documentation for
My code throws an error:
Help me debug
Design a database schema for
Given a string,
Given the array"""

_CHAT = """Explain how
Explain why
Explain the difference between
Explain the concept of
Explain to a child
What is the
What are the
What are some
What are the benefits of
What are the advantages of
What is the best way to
What should I
What happens when
How do I
How does
How do
How can I
How should I
Why is
Why do
Why are
Can you help me
Can you explain
Can you write
Tell me about
Tell me a joke about
Tell me about the history of
Describe the
Describe how to
Compare and contrast
Who was
Who is
When did
Where is
Is it true that
Give me some advice
Give me tips
I need help with
I'm writing a
I have a
Act as a
You are a
Recommend a
Suggest a
Define the term
Plan a trip to
Create a recipe for
Create a meal plan
Create a workout plan"""

_REASONING = """Solve the following math problem:
Solve for x:
Solve: if
Solve
If a train travels
If all
If a
A store sells
A farmer has
A train
A rectangle has
There are
What is the sum of
What is the next number
Which is larger,
How many
Calculate the
Find the derivative of
Find the
Prove that
Simplify the expression
Which of the following
Classify the following
Answer the question based on the context.
Read the passage and answer:"""

_TEXTS = """Summarize the following text:
Summarize this text:
Summarize the following paragraph in one sentence:
Summarize this article:
Summarize the plot of
Summarize this email:
Give me the main points of
Write a short summary of
Translate the following sentence into French:
Rewrite the following sentence
Rewrite this paragraph to be more concise:
Correct the grammar in this sentence:
Make this email more professional:
Paraphrase the following
Extract the names from the following text:
Identify the"""

_WRITING = """Write a short story about
Write a story about
Write a poem about
Write a haiku about
Write an email to
Write an email
Write a letter to
Write a blog post about
Write an essay on
Write a product description for
Write a speech
Write a dialogue between
Write a message
Write the first paragraph of
Write a review of
Continue the story:
Once upon a time"""

_COPYING = """Repeat this text word for word:
Repeat the following text:
Repeat the following code:
Repeat after me:
Copy the following list exactly:
Copy this text:
Write this sentence again:
Print this JSON exactly as it is:
Show this code again:
Rename the variable
Rename the function
Rename
Replace every
Replace the name
Change the name of the variable
Change the class name
Change the following code so that"""

_LISTS = """List ten
List five
List the
Give me a list of
Give three examples of
Continue this list:
Write the numbers from
Name five
Name the
Create a table comparing
Write the steps to
Outline a
Given the following list,
List all the
Generate a list of"""

OPENINGS: tuple[str, ...] = tuple(
    line
    for group in (_CODE, _CHAT, _REASONING, _TEXTS, _WRITING, _COPYING, _LISTS)
    for line in group.splitlines()
)
"""Each as likely as the others."""
