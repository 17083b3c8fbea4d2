package main

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// story is a recovery of ib0, one of its device and a note.
func story() []journal.Entry {
	at := func(ms int) time.Time { return time.Date(2026, 1, 2, 3, 4, 5, ms*1e6, time.Local) }
	return []journal.Entry{
		{Time: at(1), Scope: "ib0", Kind: journal.KindRung, Rung: "reset_qp", Reason: "flush_without_cause"},
		{
			Time: at(4), Scope: "ib0", Kind: journal.KindRecovered, Rung: "reset_qp", Reason: "flush_without_cause",
			Duration: journal.Seconds(3*time.Millisecond + 4321), Outage: journal.Seconds(2*time.Second + 123456789), Text: "WR_FLUSH_ERR of a send",
		},
		{Time: at(7), Scope: "soft", Kind: journal.KindRung, Rung: "wait_for_device", Reason: "removed"},
		{Time: at(8), Scope: "soft", Kind: journal.KindNote, Text: "another device appeared and is not used"},
		{
			Time: at(9), Scope: "ib0", Kind: journal.KindStopped, Rung: "reset_device", Reason: "device_reset",
			Duration: journal.Seconds(time.Hour + 400*time.Millisecond), Outage: journal.Seconds(time.Hour),
		},
	}
}

// zone is how the table shows the zone of the test's machine.
var zone = time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local).Format("Z07:00")

var table = strings.ReplaceAll(`2026-01-02 03:04:05.001Z  ib0       rung       reset_qp         flush_without_cause
2026-01-02 03:04:05.004Z  ib0       recovered  reset_qp         flush_without_cause  took 3ms, outage 2.12s; WR_FLUSH_ERR of a send
2026-01-02 03:04:05.007Z  soft      rung       wait_for_device  removed
2026-01-02 03:04:05.008Z  soft      note                        another device appeared and is not used
2026-01-02 03:04:05.009Z  ib0       stopped    reset_device     device_reset         took 1h0m0s, outage 1h0m0s
`, "Z  ", zone+"  ")

func add(f *fake, entries []journal.Entry) {
	for _, e := range entries {
		f.log.Add(e)
	}
}

func TestR29EventsTable(t *testing.T) {
	f := newFake()
	f.status = named()
	path, _ := serve(t, f)
	add(f, story())
	lines := strings.SplitAfter(table, "\n")
	for args, want := range map[string]string{
		"":                               table,
		"--interface ib0":                lines[0] + lines[1] + lines[4],
		"--device soft":                  lines[2] + lines[3],
		"--interface ib0 --device soft":  table,
		"--follow=false --interface ib0": lines[0] + lines[1] + lines[4],
	} {
		out, errOut, err := ipoibd(t, append(strings.Fields(args), "events", "--control", path)...)
		if err != nil || errOut != "" || out != want {
			t.Errorf("events %s: %v %s\n%swant\n%s", args, err, errOut, out, want)
		}
	}
}

func TestEventsOfAnUnknownName(t *testing.T) {
	f := newFake()
	f.status = named()
	path, _ := serve(t, f)
	for args, want := range map[string]string{
		"--interface soft": `there is no interface "soft"`, "--device ib0": `there is no device "ib0"`,
	} {
		if _, _, err := ipoibd(t, append(strings.Fields(args), "events", "--control", path)...); err == nil || err.Error() != want {
			t.Errorf("events %s: %v, want %s", args, err, want)
		}
	}
}

// named has one device and one interface.
func named() report.Status {
	return report.Status{Devices: []report.Device{{Name: "soft"}}, Interfaces: []report.Interface{{Name: "ib0"}}}
}

func TestR29EventsAsJSON(t *testing.T) {
	f := newFake()
	path, _ := serve(t, f)
	add(f, story())
	out, _, err := ipoibd(t, "events", "--json", "--control", path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	want := f.log.Since(0)
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d", len(lines), len(want))
	}
	for i, line := range lines {
		var got journal.Entry
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if !got.Time.Equal(want[i].Time) {
			t.Errorf("time %v, want %v", got.Time, want[i].Time)
		}
		if got.Time = want[i].Time; got != want[i] {
			t.Errorf("got  %+v\nwant %+v", got, want[i])
		}
	}
}

// The command prints each new entry at once, and ends with the daemon.
func TestR29EventsFollow(t *testing.T) {
	f := newFake()
	path, stop := serve(t, f)
	out, in := io.Pipe()
	root := rootCommand()
	var errOut strings.Builder
	root.SetOut(in)
	root.SetErr(&errOut)
	root.SetArgs([]string{"events", "--follow", "--control", path})
	ended := make(chan error, 1)
	go func() {
		ended <- root.ExecuteContext(context.Background())
		in.Close()
	}()
	var got strings.Builder
	lines := strings.SplitAfter(table, "\n")
	for i, e := range story() {
		f.log.Add(e)
		if _, err := io.CopyN(&got, out, int64(len(lines[i]))); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 || got.String() != table {
		t.Errorf("%s%s, %v", &got, rest, err)
	}
	if err := <-ended; err != nil || errOut.String() != "the daemon has exited\n" {
		t.Errorf("%q, %v", errOut.String(), err)
	}
}
