package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/terminal"
	"ipoibd/qprecovery"
)

// printRecovery writes a line on the recovery under way, and on those that were
// their rungs, their reasons and the last that ended; nothing where nothing ever
// happened.
func printRecovery(w io.Writer, r *control.Recovery, now time.Time) {
	if r == nil {
		return
	}
	if !r.Since.IsZero() {
		terminal.Fprintf(w, "  recovery\t%s\n", underWay(r, now))
	}
	if len(r.Rungs) > 0 {
		terminal.Fprintf(w, "  rungs\t%s\n", counted(r.Rungs, qprecovery.NumRung))
		terminal.Fprintf(w, "  reasons\t%s\n", counted(r.Reasons, qprecovery.NumReason))
		printLast(w, r.History, now)
	}
}

// underWay tells rung, cause and outage of the recovery under way, and what it
// waits for. The outage is the daemon's figure, which may be a moment old.
func underWay(r *control.Recovery, now time.Time) string {
	lasts := now.Sub(r.Since)
	text := fmt.Sprintf("%s (%s) because of %s, for %s, outage %s",
		r.Rung, r.State, r.Reason, short(lasts), short(max(lasts, time.Duration(r.Outage))))
	text += until("next try", r.NextTry, now) + until("gives up", r.GivesUp, now)
	if r.State == qprecovery.DeviceGivenUp.String() {
		text += "; 'ipoibd recover' starts again"
	}
	return text
}

// until tells how long it is until at; nothing where there is no such time.
func until(what string, at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return fmt.Sprintf("; %s in %s", what, short(max(at.Sub(now), 0)))
}

// printLast tells of the last recovery that ended.
func printLast(w io.Writer, history []control.RecoveryRecord, now time.Time) {
	for _, r := range slices.Backward(history) {
		if !r.End.IsZero() {
			terminal.Fprintf(w, "  last recovery\t%s\n", lastText(r, now))
			return
		}
	}
}

func lastText(l control.RecoveryRecord, now time.Time) string {
	if l.Rung == qprecovery.RungSuspend.String() {
		return fmt.Sprintf("resumed %s ago, was suspended for %s", short(now.Sub(l.End)), short(time.Duration(l.Duration)))
	}
	verb := "healed"
	if l.Stopped {
		verb = "stopped"
	}
	return fmt.Sprintf("%s %s ago by %s because of %s, took %s, outage %s",
		verb, short(now.Sub(l.End)), l.Rung, l.Reason, short(time.Duration(l.Duration)), short(time.Duration(l.Outage)))
}

// enumeration is one of those of qprecovery.
type enumeration interface {
	~uint8
	fmt.Stringer
}

// counted lists what was counted by name, in the order of the enumeration that
// ends at bound.
func counted[E enumeration](counts map[string]uint64, bound E) string {
	var parts []string
	for e := range bound {
		if n := counts[e.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", e, n))
		}
	}
	return strings.Join(parts, ", ")
}
