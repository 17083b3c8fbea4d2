package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
	"ipoibd/qprecovery/transcript"
)

// TestStories plays testdata/*.txt (see package transcript), the behaviour of a device in
// virtual time. An input is
//
//	device [absent] [scripted] [foreign] [grace D] [give-up D]
//	order reset|recover|suspend|resume      its answer is an output
//	user NAME [D] | release NAME            uses each session, and releases it after D;
//	                                        without D only when it is ordered
//	ask REASON [late]                       late: by a user of the session before
//	fatal | hang VERB | clear               faults of the HCA
//	unplug | isolate | plug same|other
//	reset works|fails|replaces|replaces-late|finds-nothing [D]
//	open works|fails [D]
//	request                                 another process asks for a reset
//	pending N | ended N OUTCOME [NAME]      of a scripted coordinator
//	advance D | stall D                     stall: Run does not run meanwhile
//	repeat N : INPUT ; INPUT ...            prints the last round alone
//	history | did
func TestStories(t *testing.T) {
	transcript.Each(t, func(t *testing.T, script string) (got string) {
		synctest.Test(t, func(t *testing.T) { got = tell(t, script) })
		return got
	})
}

// teller plays one story.
type teller struct {
	*bench
	users   map[string]*user
	running sync.WaitGroup // the users
	last    View
	answers []string // to the orders, since the last settle
	seq     uint64   // of the journal
	begin   time.Time

	mu    sync.Mutex
	lines []string
	poke  chan struct{}

	script *script // nil: the coordinator is this process's own
	takes  takes
}

// takes holds the times and results of openings and resets that the story has set.
type takes struct {
	opening, reset time.Duration
	fails          bool   // an opening does
	means          string // what a reset does
}

func (p *teller) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *teller) get() takes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takes
}

func tell(t *testing.T, script string) string {
	p := &teller{}
	defer func() { p.end() }()
	return transcript.Play(script, func(line string) []string {
		if w := strings.Fields(line); w[0] == "device" {
			p.end()
			p = newTeller(t, w[1:])
		} else {
			p.input(line)
		}
		return p.flush()
	})
}

func newTeller(t *testing.T, w []string) *teller {
	p := &teller{users: map[string]*user{}, begin: time.Now(), poke: make(chan struct{}, 1)}
	p.bench = newBench(t, func(c *Config) {
		c.Log = slog.New(p)
		open, reset := c.Open, c.Reset
		c.Open = func(ctx context.Context) (hca.Device, error) { return p.open(ctx, open) }
		c.Reset = func(ctx context.Context) error { return p.reset(ctx, reset) }
		for i, word := range w {
			switch word {
			case "foreign":
				c.AllowForeign = true
			case "grace":
				c.Grace = duration(t, w[i+1])
			case "give-up":
				c.GiveUpAfter = duration(t, w[i+1])
			case "scripted":
				p.script = &script{teller: p}
				c.Locks = func(resetlock.Config) (resetlock.Sharer, error) { return p.script, nil }
			}
		}
	})
	if slices.Contains(w, "absent") {
		p.slot.guid = hca.GUID{}
	}
	p.run()
	return p
}

func (p *teller) end() {
	if p.bench == nil {
		return
	}
	for _, u := range p.users {
		u.release()
	}
	p.set(func() { p.takes = takes{} })
	p.onRun((*owner).abandon)
	p.stop()
	p.running.Wait()
	if p.slot.faults != nil {
		p.slot.faults.Release() // no reset is left to do that
	}
}

func (p *teller) input(line string) {
	if transcript.Repeat(p.t, line, func() { p.flush() }, p.input) {
		return
	}
	p.set(func() { p.begin = time.Now() })
	p.do(strings.Fields(line))
	p.settle()
}

// settle waits until nothing more happens at this moment.
func (p *teller) settle() {
	synctest.Wait()
	p.journalled()
	var answers []string
	p.set(func() { answers, p.answers = p.answers, nil })
	slices.Sort(answers)
	for _, a := range answers {
		p.say("%s", a)
	}
	if v := p.View(); v.Session != p.last.Session || fmt.Sprint(v.Err) != fmt.Sprint(p.last.Err) {
		p.last = v
		if v.Session != nil {
			p.say("view: session %d", v.Session.Instance)
		} else {
			p.say("view: %v", v.Err)
		}
	}
}

// journalled copies new entries of the journal.
func (p *teller) journalled() {
	for _, e := range p.cfg.Journal.Since(p.seq) {
		p.seq = e.Seq
		switch e.Kind {
		case journal.KindNote:
			p.say("note: %s", e.Text)
		case journal.KindRung:
			p.say("rung %s: %s", e.Rung, e.Reason)
		default:
			p.say("%s from %s: %s, lasted %v, outage %v", e.Kind, e.Rung, e.Reason, e.Duration, e.Outage)
		}
	}
}

func (p *teller) advance(d time.Duration) {
	views, unsubscribe := p.Subscribe()
	defer unsubscribe()
	for end := time.After(d); ; p.settle() {
		select {
		case <-views:
		case <-p.poke:
		case <-end:
			return
		}
	}
}

// say writes an output, with the time since the input.
func (p *teller) say(format string, args ...any) {
	p.set(func() {
		line := fmt.Sprintf(format, args...)
		if at := time.Since(p.begin); at > 0 {
			line = fmt.Sprintf("+%v %s", at, line)
		}
		p.lines = append(p.lines, line)
	})
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

func (p *teller) flush() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := p.lines
	p.lines = nil
	return lines
}

func (p *teller) do(w []string) {
	arg := append(w, "", "", "")
	switch w[0] {
	case "order":
		p.order(arg[1])
	case "user":
		u := &user{name: arg[1], takes: duration(p.t, arg[2]), silent: arg[2] == ""}
		u.reports = func(s *Session) { p.say("%s releases session %d", u.name, s.Instance) }
		p.users[u.name] = u
		p.running.Go(func() { u.run(p.bench.users, p.Device) })
	case "release":
		p.users[arg[1]].release()
	case "ask":
		p.storyAsk(arg[1], arg[2] == "late")
	case "fatal":
		p.slot.inject(p.t, faults.Fault{Kind: faults.DeviceFatal})
	case "hang":
		p.slot.inject(p.t, faults.Fault{Kind: faults.VerbHangs, Verb: arg[1]})
	case "clear":
		p.slot.faults.Clear()
		p.slot.faults.Release()
	case "unplug": // its removal is known before its error
		p.slot.isolate()
		synctest.Wait()
		p.slot.port.Remove()
	case "isolate":
		p.slot.isolate()
	case "plug":
		p.slot.plug(map[string]hca.GUID{"same": guidSame, "other": guidOther}[arg[1]])
	case "reset":
		p.set(func() { p.takes.means, p.takes.reset = arg[1], duration(p.t, arg[2]) })
	case "open":
		p.set(func() { p.takes.fails, p.takes.opening = arg[1] == "fails", duration(p.t, arg[2]) })
	case "request":
		p.calls <- func(o *owner) { o.step(qprecovery.ResetEvent{Event: reset.Event{Kind: reset.Want}}) }
	case "pending":
		p.script.pending = transcript.Number(p.t, arg[1])
		p.script.does(reset.Release{})
	case "ended":
		p.script.end(arg)
	case "advance":
		p.advance(duration(p.t, arg[1]))
	case "stall":
		go func() { p.calls <- func(*owner) { time.Sleep(duration(p.t, arg[1])) } }()
		time.Sleep(duration(p.t, arg[1]) / 2)
	case "did":
		p.say("%d resets, %d openings, %d sessions", p.slot.did().resets, p.slot.did().opens, p.Opens())
	case "history":
		p.history()
	default:
		p.t.Fatalf("what is %q?", w)
	}
}

func (p *teller) order(what string) {
	orders := map[string]func(context.Context) error{"reset": p.Reset, "recover": p.Recover, "suspend": p.Suspend, "resume": p.Resume}
	go func() {
		answer := "done"
		if err := orders[what](context.Background()); err != nil {
			answer = err.Error()
		}
		p.set(func() { p.answers = append(p.answers, fmt.Sprintf("answer to %s: %s", what, answer)) })
	}()
}

func (p *teller) storyAsk(reason string, late bool) {
	for r := range qprecovery.NumReason {
		if r.String() == reason {
			instance := p.Opens()
			if late {
				instance--
			}
			p.Device.Ask(instance, r)
		}
	}
}

func (p *teller) history() {
	for _, r := range p.Status().History {
		line := fmt.Sprintf("%v:", r.Reason)
		for _, s := range r.Steps {
			line += fmt.Sprintf(" %v (%v)", s.Rung, s.Reason)
		}
		p.say("%s", line)
	}
}

// open and reset are those of the slot, with times and results as the story sets them.
func (p *teller) open(ctx context.Context, open Opener) (hca.Device, error) {
	p.say("open")
	t := p.get()
	select {
	case <-time.After(t.opening):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.fails {
		return nil, errors.New("it does not open")
	}
	return open(ctx)
}

func (p *teller) reset(ctx context.Context, reset func(context.Context) error) error {
	p.say("reset the HCA")
	t := p.get()
	select {
	case <-time.After(t.reset):
	case <-ctx.Done():
	}
	switch t.means {
	case "fails":
		return errors.New("it cannot be reset")
	case "finds-nothing":
		return hca.ErrNoDevice
	case "replaces": // as the reset of a real HCA: it is removed and added again
		p.replace()
	case "replaces-late": // and that becomes known after the end of the reset
		go p.replace()
	}
	return reset(ctx)
}

func (p *teller) replace() {
	const moment = 10 * time.Millisecond
	time.Sleep(moment)
	p.slot.isolate()
	time.Sleep(moment)
	p.slot.plug(guidSame)
	time.Sleep(moment)
}

// duration returns the duration in a word; "" is zero.
func duration(t *testing.T, word string) time.Duration {
	t.Helper()
	if word == "" {
		return 0
	}
	return transcript.Duration(t, word)
}

// Enabled, Handle, WithAttrs and WithGroup make it the handler of the device's log.
func (p *teller) Enabled(context.Context, slog.Level) bool { return true }
func (p *teller) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p *teller) WithGroup(string) slog.Handler            { return p }

func (p *teller) Handle(_ context.Context, r slog.Record) error {
	line := "log: " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "node_guid" && a.Key != "gids" {
			line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		}
		return true
	})
	switch r.Message { // what other goroutines log comes in any order
	case "releasing the device", "device open", "device resumed", "device suspended; it stays closed until 'ipoibd resume'",
		"cannot open device; retrying", "cannot query the ports; recovering the device":
		p.say("%s", line)
	}
	return nil
}

// script plays the locks and the other processes.
type script struct {
	*teller
	pending int            // the number of the reset
	next    []reset.Action // what the others have agreed on
}

func (s *script) Status() resetlock.Status        { return resetlock.Status{} }
func (s *script) Sharers() []string               { return nil }
func (s *script) Changes() <-chan struct{}        { return nil }
func (s *script) NextDeadline() (time.Time, bool) { return time.Time{}, false }
func (s *script) Close()                          {}

func (s *script) Step(_ time.Time, ev reset.Event, out []reset.Action) []reset.Action {
	switch ev.Kind { //nolint:exhaustive // the others are not of the user
	case reset.Want:
		s.say("request a reset")
	case reset.Released:
		s.say("ready for reset %d", s.pending)
	}
	out = append(out, s.next...)
	s.next = nil
	return out
}

func (s *script) does(a reset.Action) {
	s.calls <- func(o *owner) {
		s.next = []reset.Action{a}
		o.step(qprecovery.ResetEvent{Event: reset.Event{Kind: reset.Look}})
	}
}

// end reports the end of a reset. If the reset succeeded, the slot was reset.
func (s *script) end(w []string) {
	end := reset.Ended{Outcome: reset.Outcome(w[2])}
	if end.Outcome == reset.OutcomeDone {
		_ = s.slot.port.Close()
	}
	if w[3] != "" {
		end.Detail = w[3] + " (pid 7)"
	}
	s.does(end)
}
