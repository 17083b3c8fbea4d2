package guard_test

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// model holds the requests that are posted and not completed, in order.
type model struct {
	rig      *rig
	nextID   uint64
	posted   []request
	answered map[uint64]int // completions by ID
	owed     map[uint64]int // expected completions by ID
}

type request struct {
	id       uint64
	signaled bool
}

// post posts some sends; the backend accepts some of them.
func (m *model) post(t *rapid.T) {
	room := rigDepth - len(m.posted)
	n, takes := rapid.IntRange(0, room).Draw(t, "requests"), rapid.IntRange(0, room).Draw(t, "taken")
	var wrs []hca.SendWR
	for range n {
		wr := hca.SendWR{ID: m.nextID, UD: hca.UDDest{AH: m.rig.ah}}
		if rapid.Bool().Draw(t, "signaled") {
			wr.Flags = hca.SendSignaled
		}
		wrs = append(wrs, wr)
		m.nextID++
	}
	m.rig.inner.qp.takes = takes
	got, err := m.rig.qp.PostSend(wrs)
	if got != min(n, takes) || (err == nil) != (got == n) {
		t.Fatalf("posted %d of %d, backend accepts %d: %v", got, n, takes, err)
	}
	for _, wr := range wrs[:got] {
		m.posted = append(m.posted, request{id: wr.ID, signaled: wr.Flags != 0})
		m.owed[wr.ID] = 1
	}
}

// complete makes the backend complete one request. The completions of the signaled ones
// before it are missing for now.
func (m *model) complete(t *rapid.T) {
	if len(m.posted) == 0 {
		return
	}
	n := rapid.IntRange(1, len(m.posted)).Draw(t, "done")
	last := m.posted[n-1]
	status := success
	if !last.signaled {
		status = hca.WCLocProtErr // an unsignaled request completes only in error
	}
	m.rig.inner.send.put(done(hca.WCSend, status, last.id)...)
	m.poll(t)
	var left []request
	for i, r := range m.posted {
		switch {
		case i < n-1 && !r.signaled:
			delete(m.owed, r.id)
		case i != n-1:
			left = append(left, r)
		}
	}
	m.posted = left
}

// stale makes the backend complete a request that is not posted.
func (m *model) stale(t *rapid.T) {
	m.rig.inner.send.put(done(hca.WCSend, success, m.nextID+rapid.Uint64Range(0, 9).Draw(t, "ahead"))...)
	m.poll(t)
}

func (m *model) reset(t *rapid.T) {
	if err := m.rig.qp.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState); err != nil {
		t.Fatal(err)
	}
	for _, r := range m.posted {
		delete(m.owed, r.id)
	}
	m.posted = nil
}

// poll polls until the CQ is empty.
func (m *model) poll(t *rapid.T) {
	wc := make([]hca.WC, rapid.IntRange(1, 2*rigDepth).Draw(t, "room"))
	for {
		n, _ := m.rig.send.Poll(wc)
		if n == 0 {
			return
		}
		for _, w := range wc[:n] {
			m.answered[w.ID]++
		}
	}
}

// Every accepted request completes exactly once, except those that a reset dropped, and
// unsignaled ones before a completed one.
func TestR18EveryRequestIsAnsweredOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{rig: newRig(t, guard.Options{}), answered: map[uint64]int{}, owed: map[uint64]int{}}
		rt.Repeat(map[string]func(*rapid.T){
			"post": m.post, "complete": m.complete, "stale": m.stale, "reset": m.reset,
		})
		m.rig.dev.Fail(errBoom)
		m.poll(rt)
		if !maps.Equal(m.answered, m.owed) {
			rt.Fatalf("completions by ID %v, want %v", m.answered, m.owed)
		}
		m.rig.close()
	})
}
