"""The demonstration: a conversation that goes on long after the model's window is full.

`python -m brim.demo` talks to a small model on this machine. Where there is none to be had, it
shows a recorded run of an agent. In a terminal it draws, and everywhere else it prints lines.

script     what the user says
naive      the same conversation from a client that knows no limit
talk       the conversation itself, turn by turn
plain      it in lines, and what came of it
live       it on a screen
recorded   the recorded run, in lines and on a screen
bars       what both screens draw with
paths      what to type next
"""
