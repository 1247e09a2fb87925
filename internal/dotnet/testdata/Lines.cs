using System;
using System.Collections.Generic;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

// Threads that each stop somewhere, having written to LINES_OUT what .NET itself says of their stacks; the main thread goes
// on. What they run was run before, LINES_TURNS times less one.
class Lines
{
	static string path = Environment.GetEnvironmentVariable("LINES_OUT");
	static int turns;
	static bool armed;
	static int stopped, sink;

	static void Stop()
	{
		if (!armed)
			return;
		string trace = Environment.StackTrace;
		lock (typeof(Lines))
		{
			File.AppendAllText(path, "thread " + (Thread.CurrentThread.Name ?? "main") + "\n" + trace + "\n\n");
			stopped++;
		}
		Thread.Sleep(Timeout.Infinite);
		sink++;
	}

	static int Straight(int n)
	{
		int a = n + 1;
		int b = a * 2;
		Stop(); sink += b;
		return a + b;
	}

	static int Deep(int n)
	{
		if (n == 0)
		{
			Stop();
			return 1;
		}
		int r = Deep(n - 1);
		r +=
			n;
		return r;
	}

	static int Loops(int n)
	{
		int sum = 0;
		for (int i = 0; i < n; i++)
		{
			sum += i;
			for (int j = i; j < n; j++)
			{
				sum ^= j;
				if (i == n - 1)
					Stop();
			}
		}
		while (sum > 0)
			sum--;
		return sum;
	}

	static int Caught(int n)
	{
		try
		{
			try
			{
				if (n >= 0)
					throw new InvalidOperationException("x");
				sink++;
			}
			finally
			{
				sink += n;
				Stop(); // handles
			}
		}
		catch (InvalidOperationException e)
		{
			sink += e.Message.Length;
		}
		return sink;
	}

	static int InCatch(int n)
	{
		try
		{
			object o = null;
			sink = o.GetHashCode();
		}
		catch (NullReferenceException)
		{
			sink += n;
			Deep(3); // handles
		}
		return sink;
	}

	static bool Filter()
	{
		Stop();
		return true;
	}

	static int Filtered(int n)
	{
		try
		{
			throw new Exception();
		}
		catch (Exception) when (n > 0
			&& Filter())
		{
			sink += n;
		}
		return n;
	}

	static int Lambdas(int n)
	{
		Func<int, int> twice = x =>
		{
			x *= 2;
			Stop();
			return x;
		};
		int r = Each(new[] { n }, twice);
		return r;
	}

	static int Each<T>(T[] all, Func<T, int> f)
	{
		int r = 0;
		foreach (T t in all)
			r += f(t);
		return r;
	}

	static IEnumerable<int> Numbers(int n)
	{
		yield return 1;
		for (int i = 0; i < n; i++)
		{
			if (i == n - 1)
				Stop();
			yield return i;
		}
	}

	static int Iterated(int n)
	{
		int sum = 0;
		foreach (int i in Numbers(n + 3))
			sum += i;
		return sum;
	}

	static int Sorted(int n)
	{
		var list = new List<int> { 5, 3, 4, 1, n };
		list.Sort((a, b) =>
		{
			if (a == 1 || b == 1)
				Stop();
			return a.CompareTo(b);
		});
		return list[0];
	}

	static int Choose(string s, int n)
	{
		switch (s)
		{
			case "a":
				return 1;
			case "b":
				Stop();
				return 2;
			default:
				return n;
		}
	}

	static int Chosen(int n)
	{
		return Choose(n < 0 ? "a" : "b", n) + Straight(
			n) + n;
	}

	struct Pair<T> : IComparable<Pair<T>>
	{
		public T Value;
		public int CompareTo(Pair<T> other)
		{
			Stop();
			return 0;
		}
	}

	static int Virtual<T>(T a, T b) where T : IComparable<T>
	{
		int r = a.CompareTo(b);
		return r + 1;
	}

	static int Generic(int n)
	{
		int r = Virtual(new Pair<string>(), new Pair<string>());
		r += Virtual(new Pair<int>(), new Pair<int>());
		return r + n;
	}

	class Thing
	{
		int x = Made(1);
		public Thing(int n)
		{
			x += n;
		}
		static int Made(int n) { Stop(); return n; }
		public int X { get { return x; } }
	}

	static int Constructed(int n)
	{
		var t = new Thing(n); return t.X;
	}

	class Key
	{
		public override int GetHashCode() { Stop(); return 1; }
	}

	class Shown
	{
		public override string ToString()
		{
			int[] all = Array.FindAll(new[] { 1, 2, 3 }, x =>
			{
				var keys = new Dictionary<Key, int>();
				keys[new Key()] = x;
				return true;
			});
			return all.Length.ToString();
		}
	}

	static int Library(int n)
	{
		var lazy = new Lazy<string>(() => string.Join<Shown>(",", new List<Shown> { new Shown(), new Shown() }));
		var list = new List<int> { 1, 2 };
		list.ForEach(i =>
		{
			sink += lazy.Value.Length;
		});
		return n;
	}

	[MethodImpl(MethodImplOptions.NoInlining)]
	static int Busy(int n)
	{
		int a = 0;
		for (int i = 0; i < n; i++) // busy
			a = a * 31 + i; // busy
		for (int i = 0; i < n; i++) // busy
			a ^= (a << 3) + i; // busy
		return a; // busy
	}

	static void All()
	{
		turns = int.Parse(Environment.GetEnvironmentVariable("LINES_TURNS") ?? "1");
		var all = new Dictionary<string, Func<int, int>> {
			{ "straight", Straight }, { "deep", n => Deep(5) }, { "loops", Loops }, { "caught", Caught }, { "incatch", InCatch },
			{ "filtered", Filtered }, { "lambdas", Lambdas }, { "iterated", Iterated }, { "sorted", Sorted }, { "chosen", Chosen },
			{ "generic", Generic }, { "constructed", Constructed },
		};
		if (Environment.GetEnvironmentVariable("LINES_LIBRARY") != null) // a program may have a part of it only
			all["library"] = Library;
		foreach (var one in all)
			for (int i = 1; i < turns; i++)
				sink += one.Value(2);
		armed = true;
		foreach (var one in all)
		{
			var f = one.Value;
			var thread = new Thread(() =>
			{
				sink += f(2);
			});
			thread.Name = one.Key;
			thread.IsBackground = true;
			thread.Start();
		}
		for (int n = 0; n < all.Count;)
		{
			Thread.Sleep(10);
			lock (typeof(Lines))
				n = stopped;
		}
		File.AppendAllText(path, "ready\n");
		for (;;)
			sink += Busy(100000000);
	}

	static void Main()
	{
		All();
	}

	internal static void Begin() { All(); }

	// The program itself stops where it throws an exception.
	internal static void Await()
	{
		armed = true;
		AppDomain.CurrentDomain.FirstChanceException += (sender, e) =>
		{
			Stop();
		};
	}
}

class StartupHook
{
	public static void Initialize()
	{
		if (Environment.GetEnvironmentVariable("LINES_THROWN") != null)
			Lines.Await();
		else
			Lines.Begin();
	}
}
