package report

import "strings"

// Notice is a condition that an operator should know. Its kind is constant, unlike its text.
type Notice struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Notices are the conditions of a device or an interface.
type Notices []Notice

// Text joins the texts.
func (n Notices) Text() string {
	texts := make([]string, 0, len(n))
	for _, one := range n {
		texts = append(texts, one.Text)
	}
	return strings.Join(texts, "; ")
}

// Add adds a notice unless its text is empty.
func (n *Notices) Add(kind, text string) {
	if text != "" {
		*n = append(*n, Notice{kind, text})
	}
}
