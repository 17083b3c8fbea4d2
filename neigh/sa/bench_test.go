package sa

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

var epochTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// allOf returns the broadcast group of a partition, groupOf another one.
func allOf(pkey hca.PKey) hca.GID { return broadcastOf(groupOf(1, pkey)) }

func groupOf(n int, pkey hca.PKey) (g hca.GID) {
	g[0], g[1] = 0xff, 0x12
	binary.BigEndian.PutUint16(g[2:], signatureIPv6)
	binary.BigEndian.PutUint16(g[4:], uint16(pkey))
	binary.BigEndian.PutUint32(g[12:], uint32(n))
	return g
}

// hostOf returns the GID of a port.
func hostOf(n int) (g hca.GID) {
	g[0], g[1] = 0xfe, 0x80
	binary.BigEndian.PutUint32(g[12:], uint32(n))
	return g
}

var activePort = Port{State: hca.PortActive, GID: hostOf(5), LID: 5, SMLID: 1, SubnetTimeout: 18}

// failer has the methods of testing.TB and *rapid.T that a bench needs.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// bench runs a client under test. It keeps the time, and checks the client's invariants after each step.
type bench struct {
	tb     failer
	client *Client
	now    time.Time
	most   int // the most requests that were outstanding
}

func newBench(tb failer, seed uint64) *bench {
	return &bench{tb: tb, client: New(Config{Random: rand.New(rand.NewPCG(seed, 1))}), now: epochTime}
}

// step applies an event at the current time and returns the actions.
func (b *bench) step(ev Event) []Action {
	b.tb.Helper()
	out := b.client.Step(b.now, ev, nil)
	if err := b.client.check(); err != nil {
		b.tb.Fatalf("after %T: %v", ev, err)
	}
	b.most = max(b.most, b.client.requests.outstanding)
	return out
}

// next moves the time to the next deadline, but at most to end, and steps.
func (b *bench) next(end time.Time) []Action {
	b.tb.Helper()
	at, ok := b.client.NextDeadline()
	if !ok || at.After(end) {
		at = end
	}
	if at.After(b.now) {
		b.now = at
	}
	out := b.step(Tick{})
	if next, ok := b.client.NextDeadline(); ok && !next.After(b.now) {
		b.tb.Fatalf("deadline %v is still due after a step at %v", next, b.now)
	}
	return out
}

// answerTo is the answer of a subnet to a Send, from the right place.
func answerTo(s *subnet, send Send) Received {
	return Received{MAD: s.answer(send.MAD), SLID: s.lid, SrcQPN: hca.QPNGSI}
}

// check verifies that the indexes agree and the bounds hold.
func (c *Client) check() error {
	q := &c.requests
	counts := map[requestState]int{}
	open := 0
	all := []*request{&c.service.req}
	bounded := 0 // groups
	for _, g := range c.groups.list {
		all = append(all, &g.req)
		if g.mgid != broadcastOf(g.mgid) {
			bounded++
		}
		if c.groups.byMGID[g.mgid] != g {
			return fmt.Errorf("group %v is not indexed", g.mgid)
		}
		if len(g.owners) == 0 && g.state != groupLeaving && g.req.state != requestSent {
			return fmt.Errorf("group %v in %v has no owner", g.mgid, g.state)
		}
	}
	asked := map[*list.Element]bool{}
	for e := c.paths.asked.Front(); e != nil; e = e.Next() {
		asked[e] = true
	}
	for key, p := range c.paths.byKey {
		all = append(all, &p.req)
		if p.key != key || p.place.Value != p {
			return fmt.Errorf("path %v is not indexed", key)
		}
		if busy := p.req.state != requestIdle; busy != asked[p.place] {
			return fmt.Errorf("path %v in the wrong list, busy %v", key, busy)
		}
	}
	for _, r := range all {
		counts[r.state]++
		if r.tries > 0 {
			open++
			if q.byTID[r.tid&tidMask] != r {
				return fmt.Errorf("transaction %#x is not indexed", r.tid)
			}
		}
		if armed := r.pos > 0; armed != (r.state != requestIdle && (r.state != requestQueued || !r.until.IsZero())) {
			return fmt.Errorf("alarm %v in state %d", armed, r.state)
		}
		if (r.place != nil) != (r.state == requestQueued) {
			return fmt.Errorf("in the queue: %v, in state %d", r.place != nil, r.state)
		}
	}
	s := c.Stats()
	switch {
	case counts[requestSent] != q.outstanding || q.outstanding > maxOutstanding:
		return fmt.Errorf("%d outstanding, counted as %d", counts[requestSent], q.outstanding)
	case counts[requestQueued] != s.Queued:
		return fmt.Errorf("%d queued, counted as %d", counts[requestQueued], s.Queued)
	case s.Queued > 0 && q.outstanding < maxOutstanding:
		return fmt.Errorf("%d queued, although only %d outstanding", s.Queued, q.outstanding)
	case open != len(q.byTID):
		return fmt.Errorf("%d transactions, counted as %d", open, len(q.byTID))
	case len(c.groups.byMGID) != len(c.groups.list) || bounded > maxGroups:
		return fmt.Errorf("%d groups, %d indexed", s.Groups, len(c.groups.byMGID))
	case s.Paths > c.paths.most, c.paths.asked.Len() > maxPathQueries, c.paths.asked.Len()+c.paths.others.Len() != s.Paths:
		return fmt.Errorf("%d paths, %d and %d in lists", s.Paths, c.paths.asked.Len(), c.paths.others.Len())
	case !c.port.usable() && open+q.outstanding+s.Queued > 0:
		return fmt.Errorf("%d requests while the port is not usable", open)
	}
	sum := s.Answered + s.Busy
	for _, n := range s.Refused {
		sum += n
	}
	if sum != s.Received {
		return fmt.Errorf("%d MADs are accounted for, %d received", sum, s.Received)
	}
	return nil
}

// parse returns the headers and the record of a MAD that the client sends.
func parse(tb failer, raw []byte) (h mad.SA, member mad.MCMember, path mad.Path) {
	tb.Helper()
	if err := h.Parse(raw); err != nil {
		tb.Fatal(err)
	}
	_ = member.Parse(raw[mad.DataOffset:])
	_ = path.Parse(raw[mad.DataOffset:])
	return h, member, path
}
