package main

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
)

// panel is one bar chart of the picture.
type panel struct {
	metric metric
	title  string
	unit   string
	format string // of a value
}

var panels = []panel{
	{tcp1There, "TCP, one stream", "Gb/s, more is better", "%.1f"},
	{udp64, "UDP, 64 bytes", "thousand datagrams/s, more is better", "%.0f"},
	{rttMedian, "Round trip, median", "µs, less is better", "%.1f"},
	{cpuPerGB, "CPU time of both daemons", "s/GB over TCP, less is better", "%.2f"},
}

// Sizes in the picture, in pixels.
const (
	margin    = 20
	titleLine = 44  // above a panel's bars
	nameWidth = 92  // left of a bar
	barWidth  = 270 // the longest bar
	textWidth = 44  // right of a bar
	barLine   = 18
	barHeight = 13
	groupLine = 26 // with the MTU
	panelGap  = 30
	inRow     = 2 // panels side by side
	column1   = nameWidth + barWidth + textWidth
)

// colours of the contenders; ours stands out.
var colours = map[string]string{
	"ipoibd": "#d9480f", "ipoibd-fast": "#862e9c", "prototype": "#1971c2", "wireguard-go": "#74a12e",
	"tinc": "#9c6ade", "openvpn": "#e0a100", "veth": "#868e96", "vxlan": "#868e96",
}

// picture returns the result as SVG: a bar for each row, grouped by MTU.
func (r *report) picture() string {
	var body strings.Builder
	top, bottom := margin, margin
	for i, p := range panels {
		if i%inRow == 0 && i > 0 {
			top, bottom = bottom+panelGap, bottom+panelGap
		}
		bottom = max(bottom, r.drawPanel(&body, p, margin+i%inRow*(column1+panelGap), top))
	}
	width := 2*margin + inRow*column1 + (inRow-1)*panelGap
	caption := bottom + 30
	text(&body, margin, caption, "small", fmt.Sprintf(
		"Two hosts on one machine with %d CPUs, underlay MTU %d, medians of %d rounds. %s",
		r.CPUs, underlayMTU, r.Rounds, r.Started.Format("2006-01-02")))
	text(&body, margin, caption+16, "small", "tinc and OpenVPN run without encryption. "+
		"The prototype does the least that a program between a TAP and UDP can do.")
	height := caption + 16 + margin
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" `+
		`font-family="sans-serif" font-size="12" fill="#212529">
<style>`+
		`.title { font-size: 15px; font-weight: bold } `+
		`.small { font-size: 11px; fill: #495057 } `+
		`.ours { font-weight: bold }`+
		`</style>
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, width, height, body.String())
}

// drawPanel draws a panel with its top left corner at x, y and returns where it ends.
func (r *report) drawPanel(s *strings.Builder, p panel, x, y int) (end int) {
	rows := slices.Clone(r.Rows)
	rows = slices.DeleteFunc(rows, func(row row) bool { _, ok := row.median(p.metric); return !ok })
	text(s, x, y+14, "title", p.title)
	text(s, x, y+31, "small", p.unit)
	y += titleLine
	if len(rows) == 0 {
		text(s, x, y+barHeight, "small", "not measured")
		return y + barLine
	}
	value := func(row row) float64 { v, _ := row.median(p.metric); return v }
	longest := value(slices.MaxFunc(rows, func(a, b row) int { return cmp.Compare(value(a), value(b)) }))
	mtu := 0
	for _, row := range rows {
		if row.MTU != mtu {
			mtu = row.MTU
			text(s, x, y+groupLine-9, "small", fmt.Sprintf("MTU %d", mtu))
			y += groupLine
		}
		class := ""
		if row.Contender == "ipoibd" {
			class = "ours"
		}
		length := value(row) / longest * barWidth
		text(s, x, y+barHeight-2, class, row.Contender)
		fmt.Fprintf(s, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
			x+nameWidth, y, length, barHeight, cmp.Or(colours[row.Contender], "#868e96"))
		text(s, x+nameWidth+int(length)+5, y+barHeight-2, class, fmt.Sprintf(p.format, value(row)))
		y += barLine
	}
	return y
}

// text writes a line of text whose base line begins at x, y.
func text(s *strings.Builder, x, y int, class, line string) {
	fmt.Fprintf(s, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(line))
}
