package iface

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/resetlock/resetlocktest"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
)

// blow is one event that hits a host.
type blow struct {
	at   time.Duration // from the start of the storm
	host int
	do   func(*stormHost)
}

// calamity is a kind of blow. Its weight is its relative frequency. A lasting blow is undone some
// time later; undo may be nil.
type calamity struct {
	weight int
	draw   func(*rand.Rand) (do, undo func(*stormHost))
}

var calamities = []calamity{
	{60, randomFault},
	{3, lasting(func(h *stormHost) { h.hca.Unplug() }, (*stormHost).replug)},
	{2, lasting((*stormHost).plugOther, (*stormHost).replug)},
	{4, lasting(func(h *stormHost) { h.port().SetUp(false) }, func(h *stormHost) { h.port().SetUp(true) })},
	{3, lasting(func(h *stormHost) { h.port().DelAddr(h.under) }, func(h *stormHost) { h.port().AddAddr(h.under) })},
	{3, lasting(func(h *stormHost) { h.port().SetMTU(1400) }, func(h *stormHost) { h.port().SetMTU(underlayMTU) })},
	{3, lasting(func(h *stormHost) { h.port().SetWritable(false) }, func(h *stormHost) { h.port().SetWritable(true) })},
	{4, lasting(func(h *stormHost) { h.tap.SetUp(false) }, func(h *stormHost) { h.tap.SetUp(true) })},
	{3, lasting(func(h *stormHost) { h.command(h.dev.Suspend) }, func(h *stormHost) { h.command(h.dev.Resume) })},
	{4, lasting(func(h *stormHost) { h.fabric.SetConditions(foul) }, func(h *stormHost) { h.fabric.SetConditions(memfabric.Conditions{}) })},
	{3, once(func(h *stormHost) { h.iface.Misbehave(Slow) })},
	{2, once(func(h *stormHost) { h.iface.Misbehave(Dead) })},
	{3, once(func(h *stormHost) { h.rung(qprecovery.RungResetQP) })},
	{3, once(func(h *stormHost) { h.rung(qprecovery.RungRebuildCQ) })},
	{4, once(func(h *stormHost) { h.command(h.dev.Reset) })},
	{30, once(func(h *stormHost) { h.command(h.dev.Recover) })},
	{3, failingOpenings},
	{3, func(rnd *rand.Rand) (do, undo func(*stormHost)) {
		why := []error{hca.ErrIO, hca.ErrTimeout, hca.ErrBusy, hca.ErrNoMemory}[rnd.IntN(4)]
		query := func(err error) func(*stormHost) {
			return func(h *stormHost) { h.opening.change(func() { h.opening.query = err }) }
		}
		return query(why), query(nil)
	}},
	{2, func(rnd *rand.Rand) (do, undo func(*stormHost)) {
		d := upTo(rnd, 3*time.Second)
		return func(h *stormHost) { h.opening.change(func() { h.opening.hangs = d }) }, nil
	}},
	{3, lasting(func(h *stormHost) { h.starve(true) }, func(h *stormHost) { h.starve(false) })},
	{6, func(rnd *rand.Rand) (do, undo func(*stormHost)) {
		pause := upTo(rnd, 100*time.Millisecond)
		return func(h *stormHost) { h.park(pause) }, nil
	}},
	{8, ofNeighbour((*resetlocktest.Neighbour).Reset, nil)},
	{4, ofNeighbour((*resetlocktest.Neighbour).FailInReset, nil)},
	{4, ofNeighbour((*resetlocktest.Neighbour).Kill, nil)},
	{4, ofNeighbour((*resetlocktest.Neighbour).Stop, (*resetlocktest.Neighbour).Continue)},
	{3, lasting(func(h *stormHost) { h.locks.HoldForeign(true) }, func(h *stormHost) { h.locks.HoldForeign(false) })},
}

// ofNeighbour is a blow that hits another daemon of the host, if there is one.
func ofNeighbour(do, undo func(*resetlocktest.Neighbour)) func(*rand.Rand) (_, _ func(*stormHost)) {
	return func(rnd *rand.Rand) (_, _ func(*stormHost)) {
		which := rnd.Int()
		hit := func(what func(*resetlocktest.Neighbour)) func(*stormHost) {
			if what == nil {
				return nil
			}
			return func(h *stormHost) {
				if n := len(h.neighbours); n > 0 {
					what(h.neighbours[which%n])
				}
			}
		}
		return hit(do), hit(undo)
	}
}

// failingOpenings makes some openings fail, as those of a firmware that does not answer do.
func failingOpenings(rnd *rand.Rand) (do, undo func(*stormHost)) {
	why := []error{hca.ErrIO, hca.ErrTimeout, hca.ErrBusy, hca.ErrNoMemory, hca.ErrNoDevice}
	var fails []error
	for range 1 + rnd.IntN(3) {
		fails = append(fails, why[rnd.IntN(len(why))])
	}
	return func(h *stormHost) { h.opening.change(func() { h.opening.fails = fails }) }, nil
}

// foul is a network that loses, delays and reorders, but never duplicates, so a frame that arrives
// twice is our own fault.
var foul = memfabric.Conditions{Loss: 0.3, Reorder: 0.2, Delay: 2 * time.Millisecond, Jitter: time.Millisecond}

func lasting(do, undo func(*stormHost)) func(*rand.Rand) (_, _ func(*stormHost)) {
	return func(*rand.Rand) (_, _ func(*stormHost)) { return do, undo }
}

func once(do func(*stormHost)) func(*rand.Rand) (_, _ func(*stormHost)) { return lasting(do, nil) }

// randomFault returns a fault of any kind, at any opportunity.
func randomFault(rnd *rand.Rand) (do, undo func(*stormHost)) {
	f := faults.Fault{Kind: faults.Kind(rnd.IntN(int(faults.NumKind))), After: rnd.IntN(3) * rnd.IntN(8), Count: 1 + rnd.IntN(3)/2}
	if f.Kind == faults.VerbHangsForever {
		f.Kind = faults.VerbHangs // the storm must be able to heal every fault
	}
	do = strikeNow(f)
	switch f.Kind { //nolint:exhaustive // the others end by themselves, or by recovery
	case faults.VerbHangs:
		verbs := append(faults.Verbs(), "")
		f.Verb = verbs[rnd.IntN(len(verbs))]
		return strikeNow(f), nil
	case faults.Unplug:
		return do, (*stormHost).replug
	case faults.PortDown:
		return do, strikeNow(faults.Fault{Kind: faults.PortUp})
	case faults.GIDChange, faults.PKeyChange:
		return do, func(h *stormHost) { h.untoggle(f.Kind) }
	}
	return do, nil
}

// strikeNow injects a fault into the current instance, if there is one.
func strikeNow(f faults.Fault) func(*stormHost) {
	return func(h *stormHost) {
		if err := h.slot.Faults.Inject(f); err != nil && !errors.Is(err, backend.ErrNotOpen) {
			h.t.Error(err)
		}
	}
}

// newPlan draws n blows and the events that undo them, in order of time. Many overlap.
func newPlan(seed uint64, n int) (plan []blow) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var at time.Duration
	for range n {
		at += gap(rnd)
		do, undo := pick(rnd).draw(rnd)
		host := rnd.IntN(2)
		plan = append(plan, blow{at, host, do})
		if undo != nil {
			plan = append(plan, blow{at + length(rnd), host, undo})
		}
	}
	slices.SortStableFunc(plan, func(a, b blow) int { return cmp.Compare(a.at, b.at) })
	return plan
}

// gap draws the time between two blows, which come in bursts.
func gap(rnd *rand.Rand) time.Duration {
	switch n := rnd.IntN(10); {
	case n < 3:
		return 0
	case n < 6:
		return upTo(rnd, 20*time.Millisecond)
	case n < 8:
		return upTo(rnd, 500*time.Millisecond)
	}
	return upTo(rnd, 20*time.Second)
}

// length draws the time until a lasting blow is undone: occasionally longer than the daemon waits
// for a device.
func length(rnd *rand.Rand) time.Duration {
	if rnd.IntN(30) == 0 {
		return upTo(rnd, 3*giveUpAfter)
	}
	return upTo(rnd, 5*time.Second)
}

func upTo(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

// pick draws a calamity by weight.
func pick(rnd *rand.Rand) calamity {
	var bag []calamity
	for _, c := range calamities {
		bag = append(bag, slices.Repeat([]calamity{c}, c.weight)...)
	}
	return bag[rnd.IntN(len(bag))]
}
