package qprecovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/qprecovery/reset"
)

// site is a device that daemons share: their machines with the agreement about resets, and the kernel's
// part of both. A Step is atomic here; TestR11R15R16Explore interleaves its system calls.
type site struct {
	now     time.Time
	daemons []*node
	todo    []task

	intent, excl *node // who holds the lock on the intent, and the exclusive one on use
	file         reset.Record

	present bool   // the device is in the list
	index   uint32 // of its instance
	program bool   // a program that takes no part in the locks has the device open
	loses   bool   // the next reset removes the device and does not bring it back
	wrong   error  // the first invariant that is broken
	story   strings.Builder
}

// task is something that happens to a daemon at a time.
type task struct {
	at   time.Time
	node *node
	do   func()
}

// node is a daemon. Once it is dead, another one takes its place.
type node struct {
	*site
	number  int
	ladder  *DeviceLadder
	backlog []func() // what has happened while it was stopped

	shares  bool   // it holds the shared lock on use
	open    uint32 // the instance that it has open; 0: none
	gen     uint32 // of its session
	closing bool
	zombie  uint32 // an instance of which a user has left a context open; 0: none
	hook    bool   // it resets the device
	stuck   bool   // its users never release the device
	stopped bool
	dead    bool
	closes  int // how often it has closed the device
}

func newSite(daemons int, file reset.Record) *site {
	s := &site{now: epoch, present: true, index: 1, file: file}
	for i := range daemons {
		s.daemons = append(s.daemons, nil)
		s.start(i)
	}
	return s
}

func (s *site) note(format string, args ...any) {
	fmt.Fprintf(&s.story, "\n  %v %s", s.now.Sub(epoch), fmt.Sprintf(format, args...))
}

func (s *site) fail(format string, args ...any) {
	if s.wrong == nil {
		s.wrong = fmt.Errorf(format, args...)
	}
}

func (s *site) list() (out []Identity) {
	if s.present {
		out = []Identity{{Parent: siteDevice.Parent, Name: siteDevice.Name, Index: s.index}}
	}
	return out
}

var siteDevice = reset.Device{Parent: "eth0", Name: "rxe0", Means: "link"}

// start starts a daemon. If the device is absent, it completes a reset that was cut short, as
// resetlock.Complete does, or tries again like a daemon that its service manager restarts.
func (s *site) start(number int) {
	n := &node{site: s, number: number}
	s.daemons[number] = n
	if !s.present && s.file.Begun && s.file.Device == siteDevice && s.intent == nil && !slices.ContainsFunc(s.daemons, func(o *node) bool { return o != nil && o.shares }) {
		s.note("%d brings the device back at its start", number)
		s.bring(true)
		s.file.Phase, s.file.Begun = reset.PhaseIdle, false
	}
	if !s.present {
		n.dead = true
		s.todo = append(s.todo, task{s.now.Add(2 * time.Second), nil, func() { s.start(number) }})
		return
	}
	n.ladder = NewDeviceLadder(s.now, DeviceConfig{Join: func([]Identity) (Resets, error) {
		return reset.New(reset.Config{Device: siteDevice, Name: fmt.Sprint("ib", number), Shared: true, Exclusive: true}, n), nil
	}})
	n.step(Listed{Devices: s.list()})
}

// bring brings the device back as a new instance, or removes it.
func (s *site) bring(back bool) {
	s.present, s.program = back, false
	if back {
		s.index++
	}
	for _, n := range s.daemons {
		if n != nil && !n.dead {
			n.after(time.Millisecond, func() { n.step(Listed{Devices: s.list()}) })
		}
	}
}

func (n *node) after(d time.Duration, do func()) {
	n.todo = append(n.todo, task{n.now.Add(d), n, do})
}

// run lets time pass.
func (s *site) run(d time.Duration) {
	for end := s.now.Add(d); s.wrong == nil; {
		next := end
		for _, t := range s.todo {
			next = Earlier(next, t.at)
		}
		for _, n := range s.daemons {
			if !n.dead && !n.stopped {
				at, _ := n.ladder.NextDeadline()
				next = Earlier(next, at)
			}
		}
		if next.After(s.now) {
			s.now = next
		}
		due := slices.DeleteFunc(slices.Clone(s.todo), func(t task) bool { return t.at.After(s.now) })
		s.todo = slices.DeleteFunc(s.todo, func(t task) bool { return !t.at.After(s.now) })
		for _, t := range due {
			t.node.happen(t.do)
		}
		for _, n := range s.daemons {
			n.expire()
		}
		if !s.now.Before(end) {
			return
		}
	}
}

func (n *node) happen(do func()) {
	switch {
	case n == nil: // it happens to the site
		do()
	case n.dead:
	case n.stopped:
		n.backlog = append(n.backlog, do)
	default:
		do()
	}
}

func (n *node) expire() {
	if n.dead || n.stopped {
		return
	}
	if at, ok := n.ladder.NextDeadline(); ok && !n.now.Before(at) {
		n.step(Tick{})
	}
}

func (n *node) step(ev DeviceEvent) {
	for _, a := range n.ladder.Step(n.now, ev, nil) {
		n.act(a)
	}
}

func (n *node) act(a DeviceAction) {
	switch a := a.(type) {
	case Open:
		n.after(10*time.Millisecond, func() { n.opened(a) })
	case Close:
		if n.open != 0 && !n.closing {
			n.closing, n.closes = true, n.closes+1
			n.note("%d closes the device: %s", n.number, a.Reason)
			if !n.stuck {
				n.after(5*time.Millisecond, n.closed)
			}
		}
	case Abandon:
		n.zombie = n.open
		n.after(time.Millisecond, n.closed)
	case Refresh:
		n.after(time.Millisecond, func() { n.step(Listed{Op: a.Op, Devices: n.list()}) })
	case Check:
		n.after(time.Millisecond, func() { n.step(Checked{Gen: a.Gen}) })
	case ResetAction:
		if how, is := a.Action.(reset.Reset); is {
			n.reset(how)
		}
	}
}

func (n *node) opened(a Open) {
	if !n.present {
		n.step(Opened{Op: a.Op, Class: ClassRefused})
		return
	}
	for _, o := range n.daemons {
		if o.hook {
			n.fail("daemon %d opens the device while daemon %d resets it", n.number, o.number)
		}
	}
	n.open, n.gen, n.closing = n.index, a.Gen, false
	n.step(Opened{Op: a.Op, Identity: n.list()[0]})
}

func (n *node) closed() {
	if n.closing {
		n.open, n.closing = 0, false
		n.step(Closed{Gen: n.gen})
	}
}

// reset deletes the device and adds it again. If the daemon dies meanwhile, the device is gone.
func (n *node) reset(how reset.Reset) {
	n.note("%d resets the device: %+v", n.number, how)
	if !how.Complete && !n.present {
		n.after(0, func() { n.step(ResetEvent{reset.Event{Kind: reset.Done, Outcome: reset.OutcomeAbsent}}) })
		return
	}
	for _, o := range n.daemons {
		if o != n && !o.dead && o.open == n.index && n.present {
			n.fail("daemon %d resets the device while daemon %d has it open", n.number, o.number)
		}
	}
	if n.program {
		n.fail("daemon %d resets the device while a program has it open", n.number)
	}
	n.hook = true
	n.bring(false)
	n.after(100*time.Millisecond, func() {
		n.hook = false
		if n.loses {
			n.loses = false
			n.step(ResetEvent{reset.Event{Kind: reset.Done, Outcome: reset.OutcomeFailed, Unfinished: true}})
			return
		}
		n.bring(true)
		n.step(ResetEvent{reset.Event{Kind: reset.Done, Outcome: reset.OutcomeDone}})
	})
}

// kill kills the daemon; its service manager starts another one.
func (n *node) kill() {
	n.dead, n.hook, n.open, n.zombie = true, false, 0, 0
	n.Disclaim()
	n.Drop()
	n.todo = append(n.todo, task{n.now.Add(time.Second), nil, func() { n.start(n.number) }})
}

func (n *node) stop(stop bool) {
	n.stopped = stop
	if !stop {
		for _, do := range n.backlog {
			do()
		}
		n.backlog = nil
	}
}

// The rest implements Kernel.

func (n *node) Read() reset.Record { return n.file }

func (n *node) Write(r reset.Record) {
	n.file = r
	for _, o := range n.daemons {
		if o != n && o != nil && !o.dead {
			o.after(time.Millisecond, func() { o.step(ResetEvent{reset.Event{Kind: reset.Look}}) })
		}
	}
}

func (n *node) Claim() (bool, error) {
	if n.intent == nil {
		n.intent = n
	}
	return n.intent == n, nil
}

func (n *node) Disclaim() {
	if n.intent == n {
		n.intent = nil
	}
}

func (n *node) Share() bool {
	n.Drop()
	n.shares = n.excl == nil
	return n.shares
}

func (n *node) Exclude() (bool, error) {
	n.shares = false
	if n.excl == nil && !slices.ContainsFunc(n.daemons, func(o *node) bool { return o != nil && o.shares }) {
		n.excl = n
	}
	return n.excl == n, nil
}

func (n *node) Drop() {
	n.shares = false
	if n.excl == n {
		n.excl = nil
	}
}

func (n *node) Foreign() bool {
	left := func(o *node) bool { return o != n && o.zombie == n.index }
	return n.present && (n.program || slices.ContainsFunc(n.daemons, left))
}

func (n *node) Holders() string { return "another" }

// Times of the exploration.
const (
	// siteRecovers is how long it may take until every daemon has the device open again: the
	// longest pause, and a reset that waits for a grace period after another one.
	siteRecovers = 15 * time.Minute
	siteCalm     = time.Hour
	// siteCloses bounds how often a daemon closes the device until then. Each daemon whose users
	// did not release it resets it once itself, after it was held by the others: 6 were seen.
	siteCloses = 10
)

// settles checks that every daemon that runs has the device open again after siteRecovers,
// without an order, and that none closes it from then on.
func (s *site) settles() error {
	for _, n := range s.daemons {
		n.closes = 0
	}
	s.run(siteRecovers)
	for _, n := range s.daemons {
		if n.closes > siteCloses {
			s.fail("daemon %d has closed the device %d times after the last mishap", n.number, n.closes)
		}
		n.closes = 0
	}
	s.note("must have settled")
	s.run(siteCalm)
	if s.wrong != nil {
		return s.wrong
	}
	for i, n := range s.daemons {
		switch {
		case n.stopped:
		case n.dead:
			return fmt.Errorf("daemon %d cannot start", i)
		case n.ladder.State() != DeviceHealthy || n.open != s.index:
			return fmt.Errorf("daemon %d: %s, has instance %d open of %d", i, n.ladder.State(), n.open, s.index)
		case n.closes > 0:
			return fmt.Errorf("daemon %d has closed a device that works %d times", i, n.closes)
		}
	}
	return nil
}

// TestR14R16R21DeviceIsNotClosedForEver: each combination of a record, a program or a daemon that
// never releases the device, and a cause for a reset. The device works: no daemon resets it under
// its holder, and every daemon has it open again, without an order.
func TestR14R16R21DeviceIsNotClosedForEver(t *testing.T) {
	records := map[string]reset.Record{
		"no record":       {},
		"unfinished":      {Begun: true, Number: 7, Device: siteDevice},
		"cut short":       {Phase: reset.PhaseResetting, Begun: true, Number: 7, Device: siteDevice},
		"never begun":     {Phase: reset.PhaseWanted, Number: 7, Device: siteDevice},
		"of other means":  {Phase: reset.PhaseResetting, Begun: true, Device: reset.Device{Parent: "eth0", Name: "rxe0", Means: "pci"}},
		"of other device": {Phase: reset.PhaseResetting, Begun: true, Device: reset.Device{Parent: "eth1", Name: "rxe1", Means: "link"}},
	}
	holders := map[string]func(*site){
		"no holder":      func(*site) {},
		"program":        func(s *site) { s.program = true },
		"stopped daemon": func(s *site) { s.daemons[1].stop(true) },
		"stuck user":     func(s *site) { s.daemons[1].stuck = true },
		"own stuck user": func(s *site) { s.daemons[0].stuck = true },
	}
	causes := map[string]func(*site){
		"nothing": func(*site) {},
		"order":   func(s *site) { s.daemons[0].step(Command{ID: 1, Do: DoReset}) },
		"fault":   func(s *site) { s.daemons[0].strike() },
		"faults": func(s *site) {
			for range 5 {
				s.daemons[0].strike()
				s.run(2 * time.Minute)
			}
		},
		"restart": func(s *site) { s.daemons[0].kill() },
	}
	for record, file := range records {
		for holder, hold := range holders {
			for cause, strike := range causes {
				for _, early := range []bool{false, true} {
					s := newSite(2, file)
					if early {
						hold(s)
					}
					s.run(3 * time.Second)
					hold(s)
					strike(s)
					if err := s.settles(); err != nil {
						t.Errorf("%s, %s (early: %v), %s: %v; %s", record, holder, early, cause, err, s.story.String())
					}
				}
			}
		}
	}
}

// strike makes the device fail for a daemon.
func (n *node) strike() {
	n.note("fault of daemon %d", n.number)
	n.step(Fault{Gen: n.gen, Class: ClassDeviceError})
}

// mishaps are what may happen to a site.
var mishaps = []struct {
	name string
	do   func(s *site, n *node)
}{
	{"fault", func(_ *site, n *node) { n.strike() }},
	{"order", func(_ *site, n *node) { n.step(Command{ID: 1, Do: DoReset}) }},
	{"program", func(s *site, _ *node) { s.program = !s.program && s.present }},
	{"stop", func(_ *site, n *node) { n.stop(true) }},
	{"kill", func(_ *site, n *node) { n.kill() }},
	{"stick", func(_ *site, n *node) { n.stuck = !n.stuck }},
	{"lose", func(s *site, _ *node) { s.loses = true }},
	{"return", func(s *site, _ *node) {
		if !s.present && !slices.ContainsFunc(s.daemons, func(n *node) bool { return n.hook }) {
			s.bring(true)
		}
	}},
}

// TestR14R16R21Product lets random things happen to two or three daemons that share a device. After
// the last one, an operator brings the device back if it is gone, and every daemon that runs has it
// open again, without an order. A program may keep it open, and a daemon may stay stopped.
func TestR14R16R21Product(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSite(rapid.IntRange(1, 3).Draw(t, "daemons"), reset.Record{})
		s.run(time.Second)
		for range rapid.IntRange(1, 12).Draw(t, "mishaps") {
			n := rapid.SampledFrom(s.daemons).Draw(t, "daemon")
			m := rapid.SampledFrom(mishaps).Draw(t, "mishap")
			switch {
			case n.dead:
			case n.stopped:
				s.note("continue %d", n.number)
				n.stop(false)
			default:
				s.note("%s %d", m.name, n.number)
				m.do(s, n)
			}
			s.run(rapid.SampledFrom([]time.Duration{0, 20 * time.Millisecond, 150 * time.Millisecond, 2 * time.Second, 40 * time.Second, 70 * time.Second}).Draw(t, "delay"))
		}
		s.loses = false
		for _, n := range s.daemons { // doc.go states the limit: it blocks the others
			if n.stopped && (n.intent == n || n.excl == n) {
				n.stop(false)
			}
		}
		if s.run(time.Second); !s.present {
			s.bring(true)
		}
		if err := s.settles(); err != nil {
			t.Fatalf("%v; %s", err, s.story.String())
		}
	})
}
