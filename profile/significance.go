package profile

import (
	"math"
	"slices"
)

// Alpha bounds the chance that a comparison reports any change at all between
// profiles that only differ by chance: 5 %.
const Alpha = 0.05

// exactLimit is up to how many outcomes a test sums them all. Beyond it the
// normal distribution is as good.
const exactLimit = 2000

// exposure is how much was looked at on the two sides. Counts are shares of
// whole numbers of samples, or, when rates are compared, come in spans of time.
type exposure struct {
	before, after float64 // samples in all; or time, divided by what a sample stands for
	rates         bool
}

// compare tests whether counts of the two sides differ by more than chance:
// shares by Fisher's exact test, rates by the exact test of two Poisson rates
// (binomial, given the sum). For large counts it is the normal approximation
// of the same. It returns the two-sided p-value, and the least that the test
// could give for as many samples.
//
// profile/web/diff.js has the same, for the frames that it draws.
func (e exposure) compare(before, after int64) (p, least float64) {
	n := before + after
	if n <= 0 || e.before <= 0 || e.after <= 0 {
		return 1, 1
	}
	low, high := int64(0), n
	var logP func(k int64) float64 // of k of n before
	if e.rates {
		logQ, logR := math.Log(e.before/(e.before+e.after)), math.Log(e.after/(e.before+e.after))
		all := logFactorial(n)
		logP = func(k int64) float64 {
			return all - logFactorial(k) - logFactorial(n-k) + float64(k)*logQ + float64(n-k)*logR
		}
	} else {
		nb, na := int64(e.before), int64(e.after)
		low, high = max(0, n-na), min(n, nb)
		all := logChoose(nb+na, n)
		logP = func(k int64) float64 { return logChoose(nb, k) + logChoose(na, n-k) - all }
	}
	if before < low || before > high || low == high {
		return 1, 1
	}
	if high-low > exactLimit {
		return e.normal(before, after), 0
	}
	seen := logP(before)
	for k := low; k <= high; k++ {
		if l := logP(k); l <= seen+1e-7 {
			p += math.Exp(l)
		}
	}
	return min(p, 1), math.Exp(min(logP(low), logP(high)))
}

// normal is compare by the normal distribution.
func (e exposure) normal(before, after int64) float64 {
	b, a := float64(before), float64(after)
	q := e.before / (e.before + e.after) // expected part of the sum
	variance := (a + b) * q * (1 - q)
	if !e.rates {
		variance *= 1 - (a+b)/(e.before+e.after)
	}
	if variance <= 0 {
		return 1
	}
	return math.Erfc(math.Abs(b-(a+b)*q) / math.Sqrt(2*variance))
}

func logFactorial(n int64) float64 {
	l, _ := math.Lgamma(float64(n) + 1)
	return l
}

func logChoose(n, k int64) float64 { return logFactorial(n) - logFactorial(k) - logFactorial(n-k) }

// threshold returns below which p-value one of many tests is significant, so
// that the chance of any false one is at most Alpha. It is Bonferroni's, of
// those tests that could be significant at all, which those of a few samples
// could not (Tarone, Biometrics 46, 1990). least is sorted.
func threshold(least []float64) float64 {
	slices.Sort(least)
	for k := 1; ; k++ {
		limit := Alpha / float64(k)
		n, _ := slices.BinarySearch(least, math.Nextafter(limit, 1))
		if n <= k {
			return limit
		}
	}
}
