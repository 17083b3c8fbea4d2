package sa

import (
	"testing"

	"ipoibd/hca/mad"
)

// Each status of a refused request has a reason, which depends on the request.
func TestReasonsOfRefusals(t *testing.T) {
	for _, c := range []struct {
		status                 mad.Status
		broadcast, group, sent Reason // of a join of the broadcast group, of another one, and of one that only sends
		path                   Reason
	}{
		{mad.StatusRedirect, ReasonRedirected, ReasonRedirected, ReasonRedirected, ReasonRedirected},
		{mad.StatusBadVersion, ReasonRefused, ReasonRefused, ReasonRefused, ReasonRefused},
		{mad.StatusNoResources, ReasonNoResources, ReasonNoResources, ReasonNoResources, ReasonNoResources},
		{mad.StatusRequestInvalid, ReasonExceedsPort, ReasonRefused, ReasonNoGroup, ReasonRefused},
		{mad.StatusNoRecords, ReasonRefused, ReasonRefused, ReasonRefused, ReasonNoPath},
		{mad.StatusTooManyRecords, ReasonRefused, ReasonRefused, ReasonRefused, ReasonRefused},
		{mad.StatusInvalidGID, ReasonRefused, ReasonRefused, ReasonRefused, ReasonNoPath},
		{mad.StatusInsufficientComponents, ReasonNoGroup, ReasonNoGroup, ReasonNoGroup, ReasonRefused},
		{mad.StatusDenied, ReasonDenied, ReasonDenied, ReasonDenied, ReasonDenied},
	} {
		got := [...]Reason{
			joinReason(c.status, true, mad.JoinFull), joinReason(c.status, false, mad.JoinFull),
			joinReason(c.status, false, mad.JoinSendOnly), pathReason(c.status),
		}
		if want := [...]Reason{c.broadcast, c.group, c.sent, c.path}; got != want {
			t.Errorf("%v: %v, want %v", c.status, got, want)
		}
	}
}

// Names are there, and differ.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	add := func(name string) {
		if name == "" || name == "unknown" || seen[name] {
			t.Errorf("name %q", name)
		}
		seen[name] = true
	}
	for r := range numReason {
		add(r.String())
	}
	for r := range NumRefusal {
		add(r.String())
	}
	for s := range numGroupState {
		add(s.String())
	}
	for _, c := range (Stats{}).Counters() {
		add(c.Name)
	}
	if got := numReason.String() + NumRefusal.String(); got != "unknownunknown" {
		t.Errorf("%q", got)
	}
}

func TestMGIDs(t *testing.T) {
	limited := groupOf(3, 0x0001)
	normal, ok := normalMGID(limited)
	if !ok || normal != groupOf(3, 0x8001) || pkeyOf(limited) != 0x8001 {
		t.Errorf("%v, %v, P_Key %v", normal, ok, pkeyOf(limited))
	}
	if got := broadcastOf(normal).String(); got != "ff12:401b:8001::ffff:ffff" {
		t.Errorf("broadcast group %v", got)
	}
	for _, at := range []int{0, 2, 3} {
		g := normal
		g[at]++
		if _, ok := normalMGID(g); ok {
			t.Errorf("%v is accepted", g)
		}
	}
}
