// The gate for Python, through ctypes; see peer.py.
#include "benchmarks/collectives/gate.h"

using syncline::benchmarks::Gate;
using syncline::benchmarks::Waiting;

extern "C" {

void* gate_open(const char* path, int size, int yields) {
  return Gate::Open(path, size, yields != 0 ? Waiting::kYield : Waiting::kSpin);
}

int gate_pass(void* gate) { return static_cast<Gate*>(gate)->Pass() ? 1 : 0; }

void gate_give_up(void* gate) { static_cast<Gate*>(gate)->GiveUp(); }

int64_t* gate_durations(void* gate, int rank) { return static_cast<Gate*>(gate)->Durations(rank); }

}  // extern "C"
