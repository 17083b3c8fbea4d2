package faults

import (
	"fmt"
	"slices"

	"ipoibd/hca"
)

// Fault is a fault to inject.
type Fault struct {
	Kind  Kind
	After int // number of occasions to skip
	Count int // number of times to fire; 0 means 1; at most 1024 for an instant kind
	// Verb is, for a Kind that is OfVerb, its name in libibverbs without the prefix; empty: any that may block,
	// of an open device.
	Verb string
}

func (f *Fault) check() error {
	switch {
	case f.Kind >= NumKind:
		return fmt.Errorf("%w: %v", hca.ErrInvalid, f.Kind)
	case f.After < 0 || f.Count < 0:
		return fmt.Errorf("%w: after %d, count %d: must not be negative", hca.ErrInvalid, f.After, f.Count)
	case f.Kind.instant() && f.Count > maxEvents:
		return fmt.Errorf("%w: count of %v exceeds %d", hca.ErrInvalid, f.Kind, maxEvents)
	case f.Verb != "" && !f.Kind.OfVerb():
		return fmt.Errorf("%w: %v takes no verb", hca.ErrInvalid, f.Kind)
	case f.Verb != "" && !slices.Contains(verbs, f.Verb):
		return fmt.Errorf("%w: unknown verb %q", hca.ErrInvalid, f.Verb)
	}
	return nil
}

// maxPlanned bounds the pending faults, because every occasion searches them all.
const maxPlanned = 1024

// plan holds the pending faults: those that have yet to fire, or to fire again. Its owner
// guards it with a lock.
type plan struct {
	list  []Fault
	fired [NumKind]uint64
}

func (p *plan) add(f Fault) error {
	if len(p.list) >= maxPlanned {
		return fmt.Errorf("%w: %d faults are already pending", hca.ErrInvalid, maxPlanned)
	}
	f.Count = max(f.Count, 1)
	p.list = append(p.list, f)
	return nil
}

// fire counts an occasion of a kind and reports whether a fault fires. For a kind that is
// OfVerb, verb is the called verb.
func (p *plan) fire(k Kind, verb string) bool {
	i := slices.IndexFunc(p.list, func(f Fault) bool {
		return f.Kind == k && (f.Verb == verb || f.Verb == "" && !direct(verb) && verb != openDevice)
	})
	if i < 0 {
		return false
	}
	f := &p.list[i]
	if f.After > 0 {
		f.After--
		return false
	}
	if f.Count--; f.Count == 0 {
		p.list = slices.Delete(p.list, i, i+1)
	}
	p.fired[k]++
	return true
}

// fireFirst counts an occasion of several kinds and returns the first that fires.
func (p *plan) fireFirst(kinds ...Kind) (Kind, bool) {
	for _, k := range kinds {
		if p.fire(k, "") {
			return k, true
		}
	}
	return 0, false
}

// undo reverts a firing, so that the fault fires again at the next occasion.
func (p *plan) undo(k Kind) {
	p.fired[k]--
	p.list = slices.Insert(p.list, 0, Fault{Kind: k, Count: 1})
}
