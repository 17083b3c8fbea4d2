package hca_test

import (
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// Attribute sets of the table below.
const (
	qpInit = hca.AttrPKeyIndex | hca.AttrPort | hca.AttrQKey
	qpKeys = hca.AttrPKeyIndex | hca.AttrQKey
	qpMore = hca.AttrCurState | hca.AttrQKey
	qpPSN  = hca.AttrSQPSN
)

// wantUD is an independent copy of IBA 1.4, table 91 for UD, indexed by the states
// from and to. An entry is empty if there is no transition.
var wantUD = map[hca.QPState]map[hca.QPState]hca.Rule{
	hca.QPReset: {
		hca.QPReset: {Allowed: true},
		hca.QPInit:  {Allowed: true, Required: qpInit},
		hca.QPErr:   {Allowed: true},
	},
	hca.QPInit: {
		hca.QPReset: {Allowed: true},
		hca.QPInit:  {Allowed: true, Optional: qpInit},
		hca.QPRTR:   {Allowed: true, Optional: qpKeys},
		hca.QPErr:   {Allowed: true},
	},
	hca.QPRTR: {
		hca.QPReset: {Allowed: true},
		hca.QPRTS:   {Allowed: true, Required: qpPSN, Optional: qpMore},
		hca.QPErr:   {Allowed: true},
	},
	hca.QPRTS: {
		hca.QPReset: {Allowed: true},
		hca.QPRTS:   {Allowed: true, Optional: qpMore},
		hca.QPSQD:   {Allowed: true},
		hca.QPErr:   {Allowed: true},
	},
	hca.QPSQD: {
		hca.QPReset: {Allowed: true},
		hca.QPRTS:   {Allowed: true, Optional: qpMore},
		hca.QPSQD:   {Allowed: true, Optional: qpKeys},
		hca.QPErr:   {Allowed: true},
	},
	hca.QPSQE: {
		hca.QPReset: {Allowed: true},
		hca.QPRTS:   {Allowed: true, Optional: qpMore},
		hca.QPErr:   {Allowed: true},
	},
	hca.QPErr: {
		hca.QPReset: {Allowed: true},
		hca.QPErr:   {Allowed: true},
	},
}

func TestUDTransitions(t *testing.T) {
	for from := range hca.NumQPState {
		for to := range hca.NumQPState {
			if got, want := hca.UDTransition(from, to), wantUD[from][to]; got != want {
				t.Errorf("%v -> %v: %+v, want %+v", from, to, got, want)
			}
		}
	}
}

func TestUDTransitionOutOfRange(t *testing.T) {
	for _, s := range []hca.QPState{hca.NumQPState, 255} {
		if r := hca.UDTransition(s, hca.QPReset); r.Allowed {
			t.Errorf("transition from %d: %+v, want it forbidden", s, r)
		}
		if r := hca.UDTransition(hca.QPReset, s); r.Allowed {
			t.Errorf("transition to %d: %+v, want it forbidden", s, r)
		}
	}
}

// Only the device moves a QP to SQE.
func TestUDNoModifyEntersSQE(t *testing.T) {
	for from := range hca.NumQPState {
		if hca.UDTransition(from, hca.QPSQE).Allowed {
			t.Errorf("%v -> SQE is allowed", from)
		}
	}
}

func TestUDEveryStateIsReachedAndLeft(t *testing.T) {
	reached := map[hca.QPState]bool{hca.QPReset: true, hca.QPSQE: true}
	for range hca.NumQPState {
		for from := range hca.NumQPState {
			for to := range hca.NumQPState {
				if reached[from] && hca.UDTransition(from, to).Allowed {
					reached[to] = true
				}
			}
		}
	}
	for s := range hca.NumQPState {
		if !reached[s] || !hca.UDTransition(s, hca.QPReset).Allowed || !hca.UDTransition(s, hca.QPErr).Allowed {
			t.Errorf("%v: reached %v, or it cannot be left to RESET and ERR", s, reached[s])
		}
	}
}

func TestRuleCheck(t *testing.T) {
	toRTS := hca.UDTransition(hca.QPRTR, hca.QPRTS)
	for _, tt := range []struct {
		name string
		rule hca.Rule
		mask hca.QPAttrMask
		want bool
	}{
		{"required", toRTS, hca.AttrSQPSN, true},
		{"required and state", toRTS, hca.AttrSQPSN | hca.AttrState, true},
		{"required and optional", toRTS, hca.AttrSQPSN | hca.AttrQKey | hca.AttrCurState, true},
		{"nothing", toRTS, hca.AttrState, false},
		{"optional alone", toRTS, hca.AttrQKey, false},
		{"foreign", toRTS, hca.AttrSQPSN | hca.AttrPort, false},
		{"unknown bit", toRTS, hca.AttrSQPSN | 1<<30, false},
		{"no such transition", hca.UDTransition(hca.QPErr, hca.QPRTS), hca.AttrSQPSN, false},
	} {
		if got := tt.rule.Check(tt.mask); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// If Check accepts a mask, it refuses the mask without any of its required
// attributes, and the mask with any attribute that the rule does not name.
func TestRuleCheckProperty(t *testing.T) {
	state := rapid.Uint8Max(uint8(hca.NumQPState) - 1)
	rapid.Check(t, func(t *rapid.T) {
		r := hca.UDTransition(hca.QPState(state.Draw(t, "from")), hca.QPState(state.Draw(t, "to")))
		mask := hca.QPAttrMask(rapid.Uint32().Draw(t, "mask")) & (1<<17 - 1)
		bit := hca.QPAttrMask(1) << rapid.IntRange(1, 20).Draw(t, "bit")
		known := mask & (r.Required | r.Optional)
		if r.Check(known|r.Required) != r.Allowed {
			t.Fatalf("%+v and %#x: Check disagrees with Allowed", r, known|r.Required)
		}
		if bit&r.Required != 0 && r.Check((known|r.Required)&^bit) {
			t.Fatalf("%+v without %#x: Check accepts the mask", r, bit)
		}
		if bit&(r.Required|r.Optional) == 0 && r.Check(known|r.Required|bit) {
			t.Fatalf("%+v with %#x: Check accepts the mask", r, bit)
		}
	})
}

// How the queues handle requests in each state (IBA 10.3.1, table 93).
func TestQueueBehaviour(t *testing.T) {
	const (
		refuses = hca.QueueRefuses
		holds   = hca.QueueHolds
		runs    = hca.QueueRuns
		flushes = hca.QueueFlushes
	)
	for s, want := range map[hca.QPState][2]hca.QueueBehaviour{
		hca.QPReset:    {refuses, refuses},
		hca.QPInit:     {refuses, holds},
		hca.QPRTR:      {refuses, runs},
		hca.QPRTS:      {runs, runs},
		hca.QPSQD:      {holds, runs},
		hca.QPSQE:      {flushes, runs},
		hca.QPErr:      {flushes, flushes},
		hca.NumQPState: {refuses, refuses},
		255:            {refuses, refuses},
	} {
		if got := [2]hca.QueueBehaviour{s.SendQueue(), s.RecvQueue()}; got != want {
			t.Errorf("%v: send and receive %v, want %v", s, got, want)
		}
	}
}
