package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// column is a column of the table.
type column struct {
	metric   metric
	head     string
	unit     string
	decimals int
}

var columns = []column{
	{tcp1There, "TCP 1 →", "Gb/s", 2},
	{tcp1Back, "TCP 1 ←", "Gb/s", 2},
	{tcp4There, "TCP 4 →", "Gb/s", 2},
	{tcp4Back, "TCP 4 ←", "Gb/s", 2},
	{udp64, "UDP 64 B", "kpps", 0},
	{udp1400, "UDP 1400 B", "kpps", 0},
	{rttMedian, "round trip", "us", 1},
	{rttP99, "its p99", "us", 1},
	{rttLoaded, "beside TCP", "us", 1},
	{cpuPerGB, "CPU", "s/GB", 2},
}

// cell returns the median as text, or "-".
func (c column) cell(r row) string {
	value, ok := r.median(c.metric)
	if !ok {
		return "-"
	}
	return strconv.FormatFloat(value, 'f', c.decimals, 64)
}

// table returns the result as text.
func (r *report) table() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, Linux %s, %d CPUs, TCP with %s, underlay MTU %d, %s\n",
		r.Version, r.Kernel, r.CPUs, r.Congestion, underlayMTU, r.Started.Format("2006-01-02 15:04"))
	fmt.Fprintf(&s, "medians; rounds: %d, seconds for each figure: %d, load average before: %.1f\n\n",
		r.Rounds, r.Seconds, r.Load)
	heads, units := "", ""
	for _, c := range columns {
		heads += fmt.Sprintf("%*s", c.width(), c.head)
		units += fmt.Sprintf("%*s", c.width(), c.unit)
	}
	const first = "%5s  %-13s%s\n" // MTU, contender, figures
	fmt.Fprintf(&s, first, "MTU", "contender", heads)
	fmt.Fprintf(&s, first, "", "", units)
	mtu := 0
	for _, row := range r.Rows {
		if mtu != 0 && row.MTU != mtu {
			s.WriteByte('\n')
		}
		mtu = row.MTU
		cells := ""
		for _, c := range columns {
			cells += fmt.Sprintf("%*s", c.width(), c.cell(row))
		}
		fmt.Fprintf(&s, first, strconv.Itoa(row.MTU), row.Contender, cells)
	}
	s.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(r.Missing)) {
		fmt.Fprintf(&s, "missing: %s: %s\n", name, r.Missing[name])
	}
	for _, row := range r.Rows {
		for _, failure := range row.Failures {
			fmt.Fprintf(&s, "failed: %s: %s\n", row.name(), failure)
		}
	}
	return s.String()
}

func (c column) width() int { return max(utf8.RuneCountInString(c.head), len("12345.67")) + 2 }

// markdown returns the rows of ipoibd for docs/performance.md, without and with a fast path. The last two columns compare
// a TCP stream from a to b with other contenders of the same run.
func (r *report) markdown(step string) string {
	var s strings.Builder
	for _, row := range r.Rows {
		switch row.Contender {
		case "ipoibd":
			fmt.Fprintf(&s, "| %s | %d |", step, row.MTU)
		case "ipoibd-fast":
			fmt.Fprintf(&s, "| %s, fast path | %d |", step, row.MTU)
		default:
			continue
		}
		for _, c := range columns {
			fmt.Fprintf(&s, " %s |", c.cell(row))
		}
		fmt.Fprintf(&s, " %s | %s |\n", r.ratio(row, "prototype"), r.ratio(row, "wireguard-go"))
	}
	return s.String()
}

// ratio compares a TCP stream with another contender's at the same MTU. It is the median
// of the rounds' ratios: a machine that is slower in one round slows both contenders.
func (r *report) ratio(ours row, other string) string {
	i := r.find(other, ours.MTU)
	if i < 0 {
		return "-"
	}
	var ratios []float64
	for k, theirs := range r.Rows[i].Rounds[:min(len(ours.Rounds), len(r.Rows[i].Rounds))] {
		our, ok := ours.Rounds[k][tcp1There]
		if their := theirs[tcp1There]; ok && their > 0 {
			ratios = append(ratios, our/their)
		}
	}
	value, ok := median(ratios)
	if !ok {
		return "-"
	}
	return strconv.FormatFloat(value, 'f', 2, 64)
}
