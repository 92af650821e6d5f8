"""Weight updates under load: what each pause mode does to turns, tokens, rows and logprobs, measured.

::

    python -m benchmarks.updates [--repeats 20] [--seconds 900]

``case`` names what is compared, ``play`` is the load, ``rounds`` plays it across one update on two embedded engines,
``judge`` holds every round to what must be true, ``replay`` computes logprobs again with rows forced, and ``report``
adds rounds up.
"""
