#!/usr/bin/env python3
"""Serves a GGUF file with llama.cpp, for comparisons by load.py on machines without a llama-server.

Needs the package xllamacpp: llama.cpp with its own HTTP server as a Python wheel. The wheel's
kernels are built for AVX2; a llama-server built on the machine itself may be faster.

    load.py ... --start llama='llama_peer.py model.gguf --threads 2 --slots 16 --port {port}'
"""

import argparse
import threading


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--context", type=int, default=1024, help="of each slot")
    arguments = parser.parse_args()

    import xllamacpp  # after --help, which works without it

    parameters = xllamacpp.CommonParams()
    parameters.model.path = arguments.model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = arguments.port
    parameters.n_parallel = arguments.slots
    parameters.n_ctx = arguments.slots * arguments.context
    parameters.n_gpu_layers = 0
    parameters.cpuparams.n_threads = arguments.threads
    parameters.cpuparams_batch.n_threads = arguments.threads
    server = xllamacpp.Server(parameters)  # lives as long as it is held
    threading.Event().wait()
    del server


if __name__ == "__main__":
    main()
