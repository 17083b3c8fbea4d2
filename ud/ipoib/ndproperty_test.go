package ipoib

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// drawND draws a well-formed message of any type in the Ethernet form, with at
// most one link-layer address option, of the type that the message defines,
// among arbitrary other options.
func drawND(t *rapid.T) []byte {
	name := rapid.SampledFrom(ndNames).Draw(t, "message")
	golden := goldens()[FormEther][name]
	packet := bytes.Clone(golden[:len(golden)-len(ndOptions(golden))])
	packet = drawOptions(t, packet)
	if name != "dad" && rapid.Bool().Draw(t, "with address") {
		packet = append(packet, linkOptionOf(packet[ndType]), 1)
		packet = append(packet, rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac")...)
		packet = drawOptions(t, packet)
	}
	finishND(packet)
	return packet
}

// drawOptions appends options other than link-layer addresses.
func drawOptions(t *rapid.T, packet []byte) []byte {
	for range rapid.IntRange(0, 3).Draw(t, "options") {
		units := rapid.IntRange(1, 20).Draw(t, "units")
		packet = append(packet, rapid.ByteMin(3).Draw(t, "type"), byte(units))
		packet = append(packet, rapid.SliceOfN(rapid.Byte(), 8*units-2, 8*units-2).Draw(t, "content")...)
	}
	return packet
}

// TestTranslateNDThereAndBack checks that translating back restores every byte,
// and that the intermediate message has correct lengths and checksum.
func TestTranslateNDThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		packet := drawND(t)
		there, err := TranslateND(nil, packet, FormEther, FormIPoIB, roomy, total{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseND(there, FormIPoIB); err != nil {
			t.Fatalf("the translation does not parse: %v", err)
		}
		back, err := TranslateND(nil, there, FormIPoIB, FormEther, roomy, total{})
		if err != nil || !bytes.Equal(back, packet) {
			t.Fatalf("got  % x, %v\nwant % x", back, err, packet)
		}
	})
}
