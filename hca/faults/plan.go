package faults

import (
	"fmt"
	"slices"

	"ipoibd/hca"
)

// Fault is a fault to inject.
type Fault struct {
	Kind  Kind
	After int    // occasions that pass before it strikes
	Count int    // occasions that it strikes; 1 when 0; at most 1024 of what Inject itself does
	Verb  string // of a Kind that is OfVerb: as in libibverbs, without the prefix; empty: any
}

func (f *Fault) check() error {
	switch {
	case f.Kind >= NumKind:
		return fmt.Errorf("%w: %v", hca.ErrInvalid, f.Kind)
	case f.After < 0 || f.Count < 0:
		return fmt.Errorf("%w: after %d, count %d", hca.ErrInvalid, f.After, f.Count)
	case f.Kind.instant() && f.Count > maxEvents:
		return fmt.Errorf("%w: %v at most %d times", hca.ErrInvalid, f.Kind, maxEvents)
	case f.Verb != "" && !f.Kind.OfVerb():
		return fmt.Errorf("%w: %v takes no verb", hca.ErrInvalid, f.Kind)
	case f.Verb != "" && !slices.Contains(verbs, f.Verb):
		return fmt.Errorf("%w: no verb %q that can hang", hca.ErrInvalid, f.Verb)
	}
	return nil
}

// maxPlanned bounds the faults that are planned at a time: each is looked at on
// every occasion.
const maxPlanned = 1024

// plan holds the faults that have not struck, or not for the last time. It is
// passive; its owner guards it.
type plan struct {
	list   []Fault
	struck [NumKind]uint64
}

func (p *plan) add(f Fault) error {
	if len(p.list) >= maxPlanned {
		return fmt.Errorf("%w: %d faults are planned already", hca.ErrInvalid, maxPlanned)
	}
	f.Count = max(f.Count, 1)
	p.list = append(p.list, f)
	return nil
}

// strike counts an occasion and reports whether a fault strikes. verb is the verb
// called, for a kind that is OfVerb.
func (p *plan) strike(k Kind, verb string) bool {
	i := slices.IndexFunc(p.list, func(f Fault) bool { return f.Kind == k && (f.Verb == "" || f.Verb == verb) })
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
	p.struck[k]++
	return true
}

// first tells of an occasion of several kinds and returns the one that strikes.
func (p *plan) first(kinds ...Kind) (Kind, bool) {
	for _, k := range kinds {
		if p.strike(k, "") {
			return k, true
		}
	}
	return 0, false
}

// undo takes a strike back, so that the next occasion is struck.
func (p *plan) undo(k Kind) {
	p.struck[k]--
	p.list = slices.Insert(p.list, 0, Fault{Kind: k, Count: 1})
}
