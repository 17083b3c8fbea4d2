package diagnose

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A device that sends and never hears a peer is silent. One whose firewall rejects what it
// sends is refused, until the firewall lets it pass.
func TestSymptoms(t *testing.T) {
	type look struct {
		after                time.Duration
		sent, heard, refused uint64
		want                 symptoms
	}
	for name, looks := range map[string][]look{
		"nothing sent":         {{0, 0, 0, 0, symptoms{}}, {time.Hour, 0, 0, 0, symptoms{}}},
		"no peer":              {{time.Hour, 4, 0, 0, symptoms{}}, {silentAfter - 1, 9, 0, 0, symptoms{}}, {1, 9, 0, 0, symptoms{silent: true}}, {1, 9, 1, 0, symptoms{}}},
		"a peer that has left": {{0, 4, 1, 0, symptoms{}}, {time.Hour, 9, 1, 0, symptoms{}}},
		"firewall":             {{0, 1, 1, 0, symptoms{}}, {1, 1, 1, 2, symptoms{refused: true}}, {RefusedFor - 1, 1, 1, 2, symptoms{refused: true}}, {1, 1, 1, 2, symptoms{}}, {1, 1, 1, 3, symptoms{refused: true}}},
		"firewall, no peer":    {{0, 0, 0, 1, symptoms{refused: true}}, {silentAfter, 0, 0, 2, symptoms{silent: true, refused: true}}},
	} {
		var tr traffic
		now := time.Now()
		for i, l := range looks {
			now = now.Add(l.after)
			if got := tr.look(now, &SoftHCA{Sent: l.sent, Heard: l.heard, Refused: l.refused}); got != l.want {
				t.Errorf("%s, look %d: %+v, want %+v", name, i, got, l.want)
			}
		}
	}
}

// A host that forges the signs of a NAT, with different addresses each second, causes one log
// message a minute. The notice ends soon after the last of them.
func TestForgedSignsOfNATAreBounded(t *testing.T) {
	var w Watch
	var log []Complaint
	now, sender := time.Now(), netip.MustParseAddr("10.1.1.1")
	for i := range uint64(180) {
		h := SoftHCA{NATs: i + 1, From: netip.MustParseAddr("192.0.2.2"), ICRCOf: sender}
		notices, said := w.Look(now, h)
		text := notices.Text()
		if !strings.Contains(text, sender.String()) || !strings.Contains(text, "or they are forged") {
			t.Errorf("notice %q after %d seconds", text, i)
		}
		log = append(log, said...)
		now, sender = now.Add(time.Second), sender.Next()
	}
	if len(log) != 3 || !strings.Contains(log[0].Message, "or they are forged") {
		t.Errorf("logged %d times in 3 minutes, want 3: %v", len(log), log)
	}
	if notices, _ := w.Look(now.Add(natFor), SoftHCA{NATs: 180, From: sender, ICRCOf: sender}); len(notices) > 0 {
		t.Errorf("the notice does not end: %v", notices)
	}
}

// That trains are refused is logged once, and remains as a notice with the reason.
func TestRefusedTrainsAreLoggedOnce(t *testing.T) {
	var w Watch
	var log []Complaint
	now := time.Now()
	if notices, said := w.Look(now, SoftHCA{}); len(notices)+len(said) > 0 {
		t.Errorf("notices %v without a refusal, logged %v", notices, said)
	}
	for range 10 {
		notices, said := w.Look(now, SoftHCA{NoTrains: syscall.EIO})
		if !strings.Contains(notices.Text(), "UDP_SEGMENT: "+syscall.EIO.Error()) {
			t.Errorf("notices %v", notices)
		}
		log = append(log, said...)
		now = now.Add(time.Hour)
	}
	if len(log) != 1 || !strings.Contains(log[0].Message, "UDP_SEGMENT") {
		t.Errorf("logged %d times, want once: %v", len(log), log)
	}
}

// Every kind of notice has a rule that takes it as evidence.
func TestEveryNoticeHasARule(t *testing.T) {
	for _, kind := range NoticeKinds() {
		f := busy()
		f.device().Peers = []netip.Addr{peer}
		noticing(kind)(f)
		f.iface().Notices = f.device().Notices
		if found := Diagnose(f); len(found) != 1 {
			t.Errorf("notice %s: found %+v, want one finding", kind, found)
		}
	}
}
