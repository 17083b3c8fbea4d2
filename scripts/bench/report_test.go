package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sample is a report with gaps: a figure missing in one round, a contender without daemon,
// one that failed, one that is missing.
func sample() *report {
	return &report{
		Started: time.Date(2026, 11, 22, 14, 30, 0, 0, time.UTC),
		Version: "ipoibd 1.0", Kernel: "6.18", CPUs: 2, Congestion: "cubic", Load: 0.25, Rounds: 3, Seconds: 2,
		Rows: []row{
			{Contender: "prototype", MTU: 2044, Rounds: []figures{
				{tcp1There: 9, cpuPerGB: 1.2}, {tcp1There: 11, cpuPerGB: 1.1}, {tcp1There: 10, cpuPerGB: 1.3},
			}},
			{Contender: "wireguard-go", MTU: 2044, Rounds: []figures{{}, {}, {}}, Failures: []string{"round 1: TCP, 1 stream: iperf3: no <route>"}},
			{Contender: "ipoibd", MTU: 2044, Rounds: []figures{
				{tcp1There: 1.5, tcp1Back: 1.25, udp64: 71.4, rttMedian: 103.4, rttP99: 410, cpuPerGB: 6},
				{tcp1There: 1, udp64: 60, rttMedian: 99, rttP99: 390.2, cpuPerGB: 5.5},
				{tcp1There: 2, tcp1Back: 1.75, udp64: 70, rttMedian: 120, rttP99: 400, cpuPerGB: 9},
			}},
			{Contender: "ipoibd-fast", MTU: 4092, Rounds: []figures{{tcp1There: 2.5}}},
			{Contender: "veth", MTU: 9000, Rounds: []figures{{tcp1There: 30.126, rttMedian: 6.5}}},
		},
		Missing: map[string]string{"tinc": "no program tincd (package tinc)"},
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
		ok     bool
	}{
		{nil, 0, false},
		{[]float64{4}, 4, true},
		{[]float64{4, 1}, 2.5, true},
		{[]float64{9, 1, 4}, 4, true},
		{[]float64{9, 1, 4, 6}, 5, true},
	} {
		before := slices.Clone(c.values)
		if got, ok := median(c.values); got != c.want || ok != c.ok {
			t.Errorf("%v: %v, %v; want %v, %v", c.values, got, ok, c.want, c.ok)
		}
		if !slices.Equal(c.values, before) {
			t.Errorf("median changed %v to %v", before, c.values)
		}
	}
}

func TestTable(t *testing.T) {
	const want = `ipoibd 1.0, Linux 6.18, 2 CPUs, TCP with cubic, underlay MTU 9000, 2026-11-22 14:30
medians; rounds: 3, seconds for each figure: 2, load average before: 0.2

  MTU  contender       TCP 1 →   TCP 1 ←   TCP 4 →   TCP 4 ←  UDP 64 B  UDP 1400 B  round trip   its p99  beside TCP       CPU
                          Gb/s      Gb/s      Gb/s      Gb/s      kpps        kpps          us        us          us      s/GB
 2044  prototype         10.00         -         -         -         -           -           -         -           -      1.20
 2044  wireguard-go          -         -         -         -         -           -           -         -           -         -
 2044  ipoibd             1.50      1.50         -         -        70           -       103.4     400.0           -      6.00

 4092  ipoibd-fast        2.50         -         -         -         -           -           -         -           -         -

 9000  veth              30.13         -         -         -         -           -         6.5         -           -         -

missing: tinc: no program tincd (package tinc)
failed: wireguard-go/2044: round 1: TCP, 1 stream: iperf3: no <route>
`
	if got := sample().table(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The rows for the documentation compare only with contenders that have figures.
func TestMarkdown(t *testing.T) {
	const want = "| TCP segments | 2044 | 1.50 | 1.50 | - | - | 70 | - | 103.4 | 400.0 | - | 6.00 | 0.17 | - |\n" +
		"| TCP segments, fast path | 4092 | 2.50 | - | - | - | - | - | - | - | - | - | - | - |\n"
	if got := sample().markdown("TCP segments"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The rows fit below the heading that the page has, and the page ends with its table, so
// that rows can be added.
func TestPageHasTheColumns(t *testing.T) {
	text, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "| step | MTU |") })
	if i < 0 {
		t.Fatal("docs/performance.md has no table of steps")
	}
	for _, c := range columns {
		if want := fmt.Sprintf(" %s, %s |", c.head, c.unit); !strings.Contains(lines[i], want) {
			t.Errorf("the heading has no column %q: %s", want, lines[i])
		}
	}
	cells := strings.Count(sample().markdown("x"), "|") / 2
	for _, line := range lines[i:] {
		if strings.Count(line, "|") != cells {
			t.Errorf("a row has not %d separators: %q", cells, line)
		}
	}
}

func TestResume(t *testing.T) {
	dir := t.TempDir()
	old := sample()
	if err := old.save(dir, ""); err != nil {
		t.Fatal(err)
	}
	next := &report{Version: old.Version, Seconds: old.Seconds, Rounds: 2}
	if err := next.resume(dir); err != nil {
		t.Fatal(err)
	}
	if next.Rounds != 5 || next.done != 3 || next.table() == "" || !slices.EqualFunc(next.Rows, old.Rows, sameRow) {
		t.Errorf("resumed as %+v", next)
	}
	for _, other := range []*report{{Version: "ipoibd 2.0", Seconds: old.Seconds}, {Version: old.Version, Seconds: 1}} {
		if err := other.resume(dir); err == nil {
			t.Errorf("%s with %d s continued another run", other.Version, other.Seconds)
		}
	}
}

// The rows are measured by MTU, every second round in reverse. A continued run keeps the
// rows that it has.
func TestPlan(t *testing.T) {
	all := []contender{
		{name: "a", mtus: []int{1444, 2044}},
		{name: "b", mtus: []int{2044}, programs: []string{"no-such-program"}, origin: "package b"},
		{name: "c", mtus: []int{1444, 4092}},
	}
	list := func(rows []row) (names string) {
		for _, row := range rows {
			names += row.name() + " "
		}
		return names
	}
	r := &report{Rows: []row{{Contender: "c", MTU: 1444, Rounds: []figures{{udp64: 1}}}}, Missing: map[string]string{}}
	todo := r.plan(all, regexp.MustCompile(`^[abc]/(1444|2044)`))
	if got, want := list(order(todo, 1)), "a/1444 c/1444 a/2044 "; got != want {
		t.Errorf("round 1 has %s, want %s", got, want)
	}
	if got, want := list(order(todo, 2)), "a/2044 c/1444 a/1444 "; got != want {
		t.Errorf("round 2 has %s, want %s", got, want)
	}
	if got, want := list(r.Rows), "c/1444 a/1444 a/2044 "; got != want || len(r.Rows[0].Rounds) != 1 {
		t.Errorf("the report has %s, want %s, with the round of c", got, want)
	}
	if got, want := r.Missing["b"], "no program no-such-program (package b)"; got != want {
		t.Errorf("b is missing because of %q, want %q", got, want)
	}
}

func TestOnlyMustMatch(t *testing.T) {
	r := &report{Rounds: 1, Missing: map[string]string{}}
	if err := r.run(t.Context(), io.Discard, t.TempDir(), regexp.MustCompile("no such contender")); !errors.Is(err, errNoMatch) {
		t.Errorf("%v, want %v", err, errNoMatch)
	}
}

func sameRow(a, b row) bool {
	textA, errA := json.Marshal(a)
	textB, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(textA) == string(textB)
}

// element is a rectangle or a text of the picture.
type element struct {
	XMLName xml.Name
	X       int     `xml:"x,attr"`
	Y       int     `xml:"y,attr"`
	Width   string  `xml:"width,attr"`
	Class   string  `xml:"class,attr"`
	Text    string  `xml:",chardata"`
	pixels  float64 // of Width
}

// elements parses a picture, which must be well-formed.
func elements(t *testing.T, picture string) (out []element, width, height int) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(picture))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out, width, height
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
		start, ok := token.(xml.StartElement)
		switch {
		case !ok:
		case start.Name.Local == "svg":
			if _, err := fmt.Sscanf(picture[strings.Index(picture, "viewBox="):], `viewBox="0 0 %d %d"`, &width, &height); err != nil {
				t.Fatal(err)
			}
		case start.Name.Local == "rect" || start.Name.Local == "text":
			var e element
			if err := d.DecodeElement(&e, &start); err != nil {
				t.Fatal(err)
			}
			e.pixels, _ = strconv.ParseFloat(e.Width, 64)
			out = append(out, e)
		}
	}
}

// In each panel there is a bar of proportional length for each row that has the figure, with
// its name and its value on the same line, in the picture and without overlap.
func TestPicture(t *testing.T) {
	all, width, height := elements(t, sample().picture())
	type bar struct {
		name, value string
		length      float64
	}
	var bars []bar
	taken := map[string]string{}
	for i, e := range all {
		if e.Width == "100%" {
			continue
		}
		if e.X < 0 || e.X > width || e.Y < 0 || e.Y > height {
			t.Errorf("outside of %d x %d: %+v", width, height, e)
		}
		place := fmt.Sprint(e.XMLName.Local, e.X, " ", e.Y)
		if other, ok := taken[place]; ok {
			t.Errorf("%q and %q are at the same place", other, e.Text)
		}
		taken[place] = e.Text
		if e.XMLName.Local == "rect" {
			bars = append(bars, bar{all[i-1].Text, all[i+1].Text, e.pixels})
		}
	}
	want := []bar{
		{"prototype", "10.0", 89.6}, {"ipoibd", "1.5", 13.4}, {"ipoibd-fast", "2.5", 22.4}, {"veth", "30.1", 270}, // TCP
		{"ipoibd", "70", 270},                         // UDP
		{"ipoibd", "103.4", 270}, {"veth", "6.5", 17}, // round trip
		{"prototype", "1.20", 54}, {"ipoibd", "6.00", 270}, // CPU
	}
	if !slices.Equal(bars, want) {
		t.Errorf("bars %v, want %v", bars, want)
	}
}

// A run without any figure still makes a well-formed picture that says so.
func TestPictureWithoutFigures(t *testing.T) {
	all, _, _ := elements(t, (&report{Rows: []row{{Contender: "<x>&", MTU: 1}}}).picture())
	empty := slices.DeleteFunc(all, func(e element) bool { return e.Text != "not measured" })
	if len(empty) != len(panels) {
		t.Errorf("%d panels say that they are empty, want %d", len(empty), len(panels))
	}
}

func TestSaveWritesWhatItSays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := sample().save(dir, ""); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(text, &got); err != nil || got.table() != sample().table() {
		t.Errorf("%v; bench.json has\n%s", err, text)
	}
	if _, err := os.Stat(filepath.Join(dir, "bench.svg")); err != nil {
		t.Error(err)
	}
}

// Every contender that can be missing says where its programs come from.
func TestMissingContenderNamesItsOrigin(t *testing.T) {
	for _, c := range contenders(t.TempDir()) {
		if len(c.programs) > 0 && c.origin == "" {
			t.Errorf("%s has programs without origin", c.name)
		}
		if colours[c.name] == "" {
			t.Errorf("%s has no colour", c.name)
		}
	}
	c := contender{programs: []string{"sh", "no-such-program"}, origin: "package x"}
	if got, want := c.missing(), "no program no-such-program (package x)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
