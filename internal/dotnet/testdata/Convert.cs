// Writes an assembly of Mono's compiler anew: for .NET's own library, with its lines as a Portable PDB.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using Mono.Cecil;
using Mono.Cecil.Cil;
using Mono.CompilerServices.SymbolWriter;

class Convert
{
	const int Hidden = 0xfeefee;

	static void Main(string[] args) // from, to
	{
		var module = ModuleDefinition.ReadModule(args[0]);
		var lines = MonoSymbolFile.ReadSymbolFile(args[0] + ".mdb");
		var documents = new Dictionary<string, Document>();
		foreach (var method in module.GetTypes().SelectMany(t => t.Methods).Where(m => m.HasBody))
		{
			var entry = lines.GetMethodByToken(method.MetadataToken.ToInt32());
			if (entry == null)
				continue;
			foreach (var l in entry.GetLineNumberTable().LineNumbers)
			{
				var at = method.Body.Instructions.FirstOrDefault(i => i.Offset == l.Offset);
				if (at == null)
					continue;
				var name = "/src/" + Path.GetFileName(lines.GetSourceFile(l.File).FileName);
				Document document;
				if (!documents.TryGetValue(name, out document))
					documents[name] = document = new Document(name);
				int line = l.IsHidden ? Hidden : l.Row, column = l.IsHidden ? 0 : Math.Max(1, l.Column);
				method.DebugInformation.SequencePoints.Add(new SequencePoint(at, document)
				{
					StartLine = line, EndLine = line, StartColumn = column, EndColumn = l.IsHidden ? 0 : column + 1,
				});
			}
		}
		foreach (var reference in module.AssemblyReferences)
		{
			reference.Name = "System.Private.CoreLib";
			reference.Version = new Version(8, 0, 0, 0);
			reference.PublicKeyToken = new byte[] { 0x7c, 0xec, 0x85, 0xd7, 0xbe, 0xa7, 0x79, 0x8e };
		}
		var how = args[1].Contains("Embedded") ? (ISymbolWriterProvider)new EmbeddedPortablePdbWriterProvider() : new PortablePdbWriterProvider();
		module.Write(args[1], new WriterParameters { WriteSymbols = true, SymbolWriterProvider = how });
	}
}
