package sa

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// lossy passes MADs to a subnet manager over a fabric that loses some.
type lossy struct {
	*bench
	subnet         *subnet
	rng            *rand.Rand
	requests, both float64 // probability that a request is lost, and that a MAD of either kind is
	found, failed  map[PathKey]bool
	sent           int
	delay          bool // answers are kept in air
	air            []Received
}

func (l *lossy) act(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case Send:
			l.sent++
			if p := l.rng.Float64(); p < l.requests || p < l.both {
				continue
			}
			switch answer := answerTo(l.subnet, a); {
			case l.delay:
				l.air = append(l.air, answer)
			case l.rng.Float64() >= l.both:
				l.act(l.step(answer))
			}
		case PathFound:
			l.found[a.Key] = true
		case PathFailed:
			l.failed[a.Key] = true
		}
	}
}

// askAll asks for 200 paths five times each, and waits until all queries have ended.
func (l *lossy) askAll() {
	for i := range 200 {
		l.subnet.hosts[hostOf(i)] = uint16(i + 1)
	}
	l.act(l.step(activePort))
	for i := range 1000 {
		l.act(l.step(WantPath{PathKey{DGID: hostOf(i % 200), PKey: 0xffff}}))
	}
	for end := l.now.Add(time.Minute); l.now.Before(end) && len(l.found)+len(l.failed) < 200; {
		l.act(l.next(end))
	}
}

// A thousand requests for paths to 200 peers at once: at most 16 MADs are outstanding, no question is asked twice, and
// all queries have ended after 30 s of virtual time, although half of the MADs are lost. All paths are found by then if
// only requests are lost, so that half of the questions are answered, and nearly all if answers are lost as well.
func TestManyPathsWithLoss(t *testing.T) {
	for _, c := range []struct {
		name           string
		requests, both float64
		found          int
		within         time.Duration
	}{
		{"no loss", 0, 0, 200, 0},
		{"half of the requests", 0.5, 0, 200, pathLife},
		{"half of all MADs", 0, 0.5, 198, pathLife},
	} {
		t.Run(c.name, func(t *testing.T) {
			worst, fewest := time.Duration(0), 200
			for seed := range uint64(10) {
				l := &lossy{
					bench: newBench(t, seed), subnet: newSubnet(), rng: rand.New(rand.NewPCG(seed, 3)),
					requests: c.requests, both: c.both, found: map[PathKey]bool{}, failed: map[PathKey]bool{},
				}
				l.askAll()
				if len(l.found)+len(l.failed) != 200 || l.most > maxOutstanding || l.sent != 201 && c.within == 0 {
					t.Fatalf("seed %d: %d paths found, %d failed, %d MADs, at most %d outstanding",
						seed, len(l.found), len(l.failed), l.sent, l.most)
				}
				worst, fewest = max(worst, l.now.Sub(epochTime)), min(fewest, len(l.found))
			}
			t.Logf("at least %d paths are found, after at most %v", fewest, worst)
			if worst > c.within || fewest < c.found {
				t.Errorf("want %d, after at most %v", c.found, c.within)
			}
		})
	}
}

// An SA that answers 20 requests a second, one after the other, gets few of them twice: their pauses follow its answers.
func TestSlowSubnetAdministrator(t *testing.T) {
	const each = 50 * time.Millisecond
	b, s := newBench(t, 1), newSubnet()
	for i := range 200 {
		s.hosts[hostOf(i)] = uint16(i + 1)
	}
	type answer struct {
		at time.Time
		ev Event
	}
	var queue []answer
	var free time.Time // when the SA has answered all
	found, sent := 0, 0
	act := func(actions []Action) {
		for _, a := range actions {
			switch a := a.(type) {
			case Send:
				if sent++; b.now.After(free) {
					free = b.now
				}
				free = free.Add(each)
				queue = append(queue, answer{free, answerTo(s, a)})
			case PathFound:
				found++
			}
		}
	}
	act(b.step(activePort))
	for i := range 200 {
		act(b.step(WantPath{PathKey{DGID: hostOf(i), PKey: 0xffff}}))
	}
	for end := b.now.Add(time.Minute); b.now.Before(end) && found < 200; b.now = b.now.Add(each / 10) {
		for len(queue) > 0 && !queue[0].at.After(b.now) {
			ev := queue[0].ev
			queue = queue[1:]
			act(b.client.Step(b.now, ev, nil))
		}
		act(b.client.Step(b.now, Tick{}, nil))
	}
	st := b.client.Stats()
	t.Logf("%d paths after %v, %d requests, %d answers too many", found, b.now.Sub(epochTime), sent, st.Refused[RefuseLate])
	if found != 200 || sent > 2*200 {
		t.Errorf("want 200 paths by at most twice as many requests")
	}
}

// Groups beyond the bound are refused, and the others are joined 16 at a time.
func TestGroupsAreBounded(t *testing.T) {
	b, s := newBench(t, 1), newSubnet()
	var refused int
	for n := range maxGroups + 2 {
		for _, a := range b.client.Step(b.now, Join{Owner: 1, MGID: groupOf(n, 0xffff)}, nil) {
			if f, ok := a.(JoinFailed); ok && f.Reason == ReasonLimit {
				refused++
			}
		}
	}
	b.step(Join{Owner: 1, MGID: allOf(0xffff)}) // which no other may keep out
	if refused != 2 || len(b.client.Groups()) != maxGroups+1 {
		t.Errorf("%d refused, %d groups", refused, len(b.client.Groups()))
	}
	l := &lossy{bench: b, subnet: s, rng: rand.New(rand.NewPCG(1, 1)), delay: true}
	l.act(b.step(activePort))
	for len(l.air) > 0 {
		ev := l.air[0]
		l.air = l.air[1:]
		l.act(b.client.Step(b.now, ev, nil))
		l.most = max(l.most, b.client.requests.outstanding)
	}
	if err := b.client.check(); err != nil {
		t.Error(err)
	}
	if len(s.members) != maxGroups+1 || l.most != maxOutstanding {
		t.Errorf("%d memberships, at most %d outstanding", len(s.members), l.most)
	}
}

// A full cache forgets the path that was wanted longest ago, but none that is being asked for.
func TestPathsAreBounded(t *testing.T) {
	b, s := newBench(t, 1), newSubnet()
	b.client = New(Config{Random: rand.New(rand.NewPCG(1, 1)), MaxPaths: 3})
	l := &lossy{
		bench: b, subnet: s, rng: rand.New(rand.NewPCG(1, 1)), found: map[PathKey]bool{}, failed: map[PathKey]bool{},
	}
	key := func(n int) PathKey { return PathKey{DGID: hostOf(n), PKey: 0xffff} }
	l.act(b.step(activePort))
	for n := range 5 {
		s.hosts[hostOf(n)] = uint16(n + 1)
	}
	for _, n := range []int{0, 1, 2, 0, 3} {
		l.act(b.step(WantPath{key(n)}))
	}
	has := func(n int) bool { return b.client.paths.byKey[key(n)] != nil }
	if !has(0) || has(1) || !has(2) || !has(3) || b.client.Stats().PathsEvicted != 1 {
		t.Errorf("after 0, 1, 2, 0, 3 the cache has %v", b.client.Paths())
	}
	l.both = 1
	for _, n := range []int{4, 5, 6, 7} {
		l.act(b.step(WantPath{key(n)}))
	}
	if !has(4) || !has(5) || !has(6) || has(7) || !l.failed[key(7)] {
		t.Errorf("with three queries under way the cache has %v, failed %v", b.client.Paths(), l.failed)
	}
}

// More queries than the bound are refused at once.
func TestQueriesAreBounded(t *testing.T) {
	b := newBench(t, 1)
	b.client.Step(b.now, activePort, nil)
	var refused int
	for n := range maxPathQueries + 3 {
		for _, a := range b.client.Step(b.now, WantPath{PathKey{DGID: hostOf(n)}}, nil) {
			if f, ok := a.(PathFailed); ok && f.Reason == ReasonLimit {
				refused++
			}
		}
	}
	s := b.client.Stats()
	if refused != 3 || s.Outstanding != maxOutstanding || s.Queued != maxPathQueries+1-maxOutstanding {
		t.Errorf("%d refused, %d outstanding, %d queued", refused, s.Outstanding, s.Queued)
	}
	if err := b.client.check(); err != nil {
		t.Error(err)
	}
}

// Memberships do not wait behind queries for paths.
func TestMembershipsGoFirst(t *testing.T) {
	b, s := newBench(t, 1), newSubnet()
	b.step(activePort)
	for n := range 100 {
		b.step(WantPath{PathKey{DGID: hostOf(n)}})
	}
	b.step(Join{Owner: 1, MGID: allOf(0xffff)})
	for _, a := range b.next(b.now.Add(time.Second)) {
		if send, ok := a.(Send); ok {
			h, _, _ := parse(t, send.MAD)
			if h.Attribute == mad.AttrClassPortInfo {
				continue
			}
			if h.Method != mad.MethodSet {
				t.Errorf("%v %v goes before the join", h.Method, h.Attribute)
			}
			b.step(answerTo(s, send))
			return
		}
	}
	t.Error("no join")
}

// A pause is as long as the SA has been silent, between 0.5 and 16 s, and longer than its answers take. From the fourth on it is jittered, and never less
// than the specification allows an answer to take, unless the SA answers others.
func TestPauses(t *testing.T) {
	const any18, small = 2147483648 * time.Nanosecond, 1 // SubnetTimeout 18 is 1.07 s, twice
	const never = time.Hour
	for _, c := range []struct {
		tries      int
		age, heard time.Duration // how long before the latest try r began, and the SA answered another request
		timeout    mad.TimeCode
		from, to   time.Duration
	}{
		{1, 0, never, 18, firstPause, firstPause},
		{2, firstPause, never, 18, firstPause, firstPause},
		{3, time.Second, never, 18, time.Second, time.Second},
		{3, time.Second, 0, 18, firstPause, firstPause},
		{4, 4 * time.Second, never, small, 3500 * time.Millisecond, 4500 * time.Millisecond},
		{5, 8 * time.Second, never, small, 7 * time.Second, 9 * time.Second},
		{60, never, never, small, 14 * time.Second, 18 * time.Second},
		{60, never, time.Second, small, 875 * time.Millisecond, 1125 * time.Millisecond},
		{60, never, 0, 18, firstPause * 7 / 8, firstPause * 9 / 8},
		{60, time.Second, never, 18, any18 * 7 / 8, any18 * 9 / 8},
		{4, time.Second, never, 31, 14 * time.Second, 18 * time.Second},
	} {
		for seed := range uint64(50) {
			b := newBench(t, seed)
			b.client.Step(b.now, Port{State: hca.PortActive, SMLID: 1, SubnetTimeout: c.timeout}, nil)
			q := &b.client.requests
			q.heard = b.now.Add(-c.heard)
			r := &request{tries: c.tries, first: b.now.Add(-c.age), last: b.now}
			if d := q.pause(r); d < c.from || d > c.to {
				t.Errorf("%+v: %v", c, d)
			}
			if q.slowest = slotTime; q.pause(r) < busyPause*7/8 {
				t.Errorf("%+v: %v while the answers take %v", c, q.pause(r), slotTime)
			}
		}
	}
}

// fixed is a source that repeats its numbers.
type fixed struct {
	numbers []uint64
	next    int
}

func (f *fixed) Uint64() uint64 {
	f.next++
	return f.numbers[(f.next-1)%len(f.numbers)]
}

// No two open requests have the same transaction in the bits by which answers are matched, and none has zero.
func TestTransactionsDiffer(t *testing.T) {
	b := newBench(t, 1)
	b.client = New(Config{Random: &fixed{numbers: []uint64{7, 0xabcd<<48 | 7, 0xabcd << 48, 0, 8}}})
	var tids []uint64
	for _, ev := range []Event{activePort, WantPath{PathKey{DGID: hostOf(1)}}} {
		for _, a := range b.step(ev) {
			tids = append(tids, a.(Send).TID)
		}
	}
	if !slices.Equal(tids, []uint64{7, 8}) {
		t.Errorf("transactions %#x", tids)
	}
}

// Queries that never get a free slot fail in time as well, with an SA that does not answer.
func TestQueriesEndInTheQueue(t *testing.T) {
	b := newBench(t, 1)
	b.client.Step(b.now, activePort, nil)
	const asked = 1000
	for n := range asked {
		b.client.Step(b.now, WantPath{PathKey{DGID: hostOf(n)}}, nil)
	}
	failed := 0
	for end := b.now.Add(pathLife); b.now.Before(end); {
		at, ok := b.client.NextDeadline()
		if !ok || at.After(end) {
			at = end
		}
		b.now = at
		for _, a := range b.client.Step(b.now, Tick{}, nil) {
			if f, ok := a.(PathFailed); ok && f.Reason == ReasonNoAnswer {
				failed++
			}
		}
	}
	if err := b.client.check(); err != nil {
		t.Error(err)
	}
	if s := b.client.Stats(); failed != asked || s.Queued > 0 {
		t.Errorf("%d of %d failed, %d queued", failed, asked, s.Queued)
	}
}
