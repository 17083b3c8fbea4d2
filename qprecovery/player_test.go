package qprecovery

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery/transcript"
)

// epoch is the start time of each transcript.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestTranscripts plays testdata/*.txt (see package transcript). Each file shows the
// requirement in its name. An input is
//
//	interface                            starts with a new interface; for devices, see
//	                                     devicePlayer
//	attached [gen N] | stopped | down | up | gave-up
//	fault CLASS [gen N] [since D] [request]
//	wc STATUS [gen N] | event TYPE [gen N]
//	suspect [gen N] [since D] [events-lost] | checked [as CLASS] [gen N]
//	done [found STATE] [frozen] | failed [CLASS] | stale [CLASS] | order RUNG
//	advance D                            time passes, with a Tick at each deadline
//	stall D                              time passes without a Tick
//	repeat N : INPUT ; INPUT...          prints only the last round
//	hand over                            another process continues the ladder, unless it is refused
//	history | counts
//
// The default of gen is the generation of the objects in use; since D means D ago.
func TestTranscripts(t *testing.T) {
	transcript.Each(t, func(t *testing.T, script string) string {
		return transcript.Play(script, (&player{t: t, now: epoch}).line)
	})
}

// player plays one transcript.
type player struct {
	t   *testing.T
	now time.Time
	m   machine
	gen uint32
	op  uint64
}

// machine has the common methods of both ladders.
type machine interface {
	step(now time.Time, ev any) (acts []any, ok bool)
	NextDeadline() (time.Time, bool)
	History() []Record
	Counts() Counts
	state() string
}

type interfaceMachine struct{ *Ladder }

func (m interfaceMachine) state() string { return m.State().String() }
func (m interfaceMachine) step(now time.Time, ev any) (out []any, ok bool) {
	e, ok := ev.(Event)
	if !ok {
		return nil, false
	}
	for _, a := range m.Step(now, e, nil) {
		out = append(out, a)
	}
	return out, true
}

func (p *player) line(line string) []string {
	var out []string
	if transcript.Repeat(p.t, line, func() { out = nil }, func(in string) {
		for _, o := range p.line(in) {
			out = append(out, in+": "+o)
		}
	}) {
		return out
	}
	w := strings.Fields(line)
	switch w[0] {
	case "interface":
		p.m = interfaceMachine{&Ladder{}}
		return nil
	case "device":
		p.m, p.gen = newDevicePlayer(p, w[1:]), 1
		return nil
	case "advance":
		return p.advance(transcript.Duration(p.t, w[1]))
	case "stall":
		p.now = p.now.Add(transcript.Duration(p.t, w[1]))
		return p.input(Tick{})
	case "hand":
		return p.handOver()
	case "history":
		return p.history()
	case "counts":
		return counts(p.m.Counts())
	}
	if h, ok := p.m.(*devicePlayer); ok {
		return h.play(w)
	}
	return p.input(p.event(w))
}

// handOver replaces the machine by one that continues it, as the state passes between processes.
func (p *player) handOver() []string {
	before := p.m.state()
	switch m := p.m.(type) {
	case interfaceMachine:
		h, ok := m.HandOver(p.now)
		if !ok {
			return []string{"refused"}
		}
		p.m, p.gen = interfaceMachine{InheritLadder(p.now, copyOf(p.t, h))}, 1
	case *devicePlayer:
		h, ok := m.HandOver(p.now)
		if !ok {
			return []string{"refused"}
		}
		m.DeviceLadder, m.held, m.refresh, p.gen = InheritDeviceLadder(p.now, m.cfg, copyOf(p.t, h)), false, 0, 1
	}
	return []string{before + ", handed over " + p.m.state()}
}

// copyOf returns what another process decodes.
func copyOf[T any](t *testing.T, in T) (out T) {
	t.Helper()
	text, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (p *player) input(ev any) (out []string) {
	before, counted := p.m.state(), p.m.Counts()
	acts, ok := p.m.step(p.now, ev)
	if !ok {
		p.t.Fatalf("%T is not an event of this ladder", ev)
	}
	for _, a := range acts {
		out = append(out, p.describe(a))
	}
	now := p.m.Counts()
	if now.Stale > counted.Stale {
		out = append(out, "stale")
	}
	if now.Absorbed > counted.Absorbed {
		out = append(out, "absorbed")
	}
	if after := p.m.state(); after != before {
		out = append(out, before+" -> "+after)
	}
	return out
}

func (p *player) advance(d time.Duration) (out []string) {
	start, end := p.now, p.now.Add(d)
	for {
		at, ok := p.m.NextDeadline()
		if !ok || at.After(end) {
			break
		}
		p.now = at
		lines := p.input(Tick{})
		if next, ok := p.m.NextDeadline(); ok && !next.After(at) {
			p.t.Fatalf("%s: a deadline has passed without effect", p.m.state())
		}
		for _, o := range lines {
			out = append(out, fmt.Sprintf("+%v %s", at.Sub(start), o))
		}
	}
	p.now = end
	return shorten(out)
}

// shorten replaces the middle of a run of Refresh lines by "...".
func shorten(lines []string) (out []string) {
	const what = " Refresh"
	for i, line := range lines {
		inside := i > 0 && i+1 < len(lines) && strings.HasSuffix(lines[i-1], what) && strings.HasSuffix(lines[i+1], what)
		switch {
		case !inside || !strings.HasSuffix(line, what):
			out = append(out, line)
		case out[len(out)-1] != "...":
			out = append(out, "...")
		}
	}
	return out
}

// describe returns the text of an action, and notes its operation and
// generation.
func (p *player) describe(a any) string {
	switch a := a.(type) {
	case Query:
		p.op = a.Op
		return "query"
	case Prove:
		p.op = a.Op
		return "prove"
	case Run:
		p.op, p.gen = a.Op, a.Gen
		return fmt.Sprintf("run %v gen %d: %v", a.Rung, a.Gen, a.Reason)
	case Release:
		p.op = a.Op
		return "release"
	case Open:
		p.op, p.gen = a.Op, a.Gen
		return fmt.Sprintf("open gen %d", a.Gen)
	case RequestReset:
		return fmt.Sprintf("request reset: %v", a.Reason)
	case Check:
		return fmt.Sprintf("check gen %d", a.Gen)
	case GiveUp:
		return fmt.Sprintf("give up: %v", a.Reason)
	case ReportForeign:
		return fmt.Sprintf("foreign device %s index %d", a.Identity.NodeGUID, a.Identity.Index)
	}
	return describeDevice(a)
}

func (p *player) history() (out []string) {
	for _, r := range p.m.History() {
		s := fmt.Sprintf("at +%v %v:", r.Start.Sub(epoch), r.Reason)
		for _, step := range r.Steps {
			s += fmt.Sprintf(" %v (%v)", step.Rung, step.Reason)
		}
		if r.End.IsZero() {
			s += ", under way"
		} else {
			s += fmt.Sprintf(", lasted %v, outage %v", r.Duration(), r.Outage())
		}
		if r.Stopped {
			s += ", stopped"
		}
		if q := r.Request; q != nil {
			s += fmt.Sprintf("; request %v opcode %d wr %d vendor %#x to %v sg %v", q.Status, q.Opcode, q.WRID, q.VendorErr, q.DestQPN, q.SGList)
		}
		out = append(out, s)
	}
	return out
}

func counts(c Counts) (out []string) {
	for r, n := range c.Rungs {
		if n > 0 {
			out = append(out, fmt.Sprintf("rung %v %d", Rung(r), n))
		}
	}
	for r, n := range c.Reasons {
		if n > 0 {
			out = append(out, fmt.Sprintf("reason %v %d", Reason(r), n))
		}
	}
	if c.FoundRTS > 0 {
		out = append(out, fmt.Sprintf("found in RTS %d", c.FoundRTS))
	}
	return append(out, fmt.Sprintf("absorbed %d, stale %d", c.Absorbed, c.Stale))
}

// same and other are devices.
var (
	same  = Identity{NodeGUID: hca.GUID{1}, PortGUID: hca.GUID{2}, SysImageGUID: hca.GUID{3}, PCIAddr: "0000:01:00.0", Index: 7, Name: "mlx5_0"}
	other = Identity{NodeGUID: hca.GUID{9}, PortGUID: hca.GUID{2}, SysImageGUID: hca.GUID{3}, PCIAddr: "0000:01:00.0", Index: 7, Name: "mlx5_0"}
)

// option returns the word after a key, or otherwise if there is none.
func option(w []string, key, otherwise string) string {
	if i := slices.Index(w, key); i >= 0 && i+1 < len(w) {
		return w[i+1]
	}
	return otherwise
}

func (p *player) event(w []string) any {
	gen := uint32(transcript.Number(p.t, option(w, "gen", strconv.Itoa(int(p.gen)))))
	since := p.now.Add(-transcript.Duration(p.t, option(w, "since", "0s")))
	switch w[0] {
	case "attached":
		p.gen = uint32(transcript.Number(p.t, option(w, "gen", strconv.Itoa(int(p.m.(interfaceMachine).NextGen())))))
		return Attached{p.gen}
	case "stopped":
		return Stopped{}
	case "down":
		return DeviceDown{}
	case "up":
		return DeviceUp{}
	case "gave-up":
		return DeviceGaveUp{}
	case "fault":
		return Fault{gen, named(p.t, w[1], NumClass), request(w), since}
	case "wc":
		return Fault{gen, OfCompletion(named(p.t, w[1], hca.NumWCStatus)), request(w), since}
	case "event":
		return Fault{gen, OfEvent(named(p.t, w[1], hca.NumEventType)), nil, since}
	case "suspect":
		return Suspected{gen, since, slices.Contains(w, "events-lost")}
	case "checked":
		return Checked{gen, named(p.t, option(w, "as", "success"), NumClass)}
	case "order":
		return Order{named(p.t, w[1], NumRung), named(p.t, option(w, "as", "none"), NumReason)}
	}
	return p.moreEvents(w)
}

func (p *player) moreEvents(w []string) any {
	switch w[0] {
	case "done":
		return Done{p.op, ClassSuccess, named(p.t, option(w, "found", "RTS"), hca.NumQPState), slices.Contains(w, "frozen")}
	case "failed":
		return Done{Op: p.op, Class: named(p.t, append(w, "refused")[1], NumClass)}
	case "stale":
		return Done{Op: p.op - 1, Class: named(p.t, append(w, "success")[1], NumClass), State: hca.QPRTS}
	}
	p.t.Fatalf("unknown input %q", w)
	return nil
}

// request returns a sample request if the input has the word "request", else
// nil.
func request(w []string) *Request {
	if !slices.Contains(w, "request") {
		return nil
	}
	return &Request{
		Status: hca.WCLocProtErr, Opcode: hca.WCSend, VendorErr: 0x33, WRID: 42,
		SGList: []hca.SGE{{Addr: 0x1000, Length: 2048, LKey: 0x77}}, DestQPN: 0x11,
	}
}

func named[T interface {
	~uint8
	fmt.Stringer
}](t *testing.T, name string, n T) T {
	for v := range n {
		if v.String() == name {
			return v
		}
	}
	t.Fatalf("%T has no value %q", n, name)
	return 0
}
